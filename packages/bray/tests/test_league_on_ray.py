"""A league over the wire on Ray goes on when the worker that answers it is killed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import bray
from bray.composition import source_maker, train
from bray.templates.loading import load

LEAGUE = """
trainers:
  main: &ppo {algorithm: ppo, steps_per_replay: 128, epochs: 2, minibatch_size: 64}
  rival: *ppo
models:
  main: &seen
    hidden: [16]
    spaces:
      observation:
        observation: {shape: [3, 3, 2], dtype: int8, low: 0, high: 1}
        action_mask: {multi_binary: [9]}
      action: {discrete: 9}
  rival: *seen
sources:
  game:
    kind: matches
    command: >-
      python -m bray_actor.gamecores.multi_agent_gamecore --env tictactoe_v3 --address {address}
      --lanes {lanes} --seed {seed} --lane-offset {first_lane}
    count: 2
    lanes: 4
    sides: {one: player_1, two: player_2}
    opponents: {rule: league, freeze_every: 600, roles: {main: main, rival: main_exploiter}}
goal: {agent: main, max_frames: 6000, evaluation_episodes: 10}
"""


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.timeout(280)
@pytest.mark.usefixtures("ray_cluster")
def test_a_killed_worker_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    make = source_maker.several_gamecores
    monkeypatch.setattr(
        source_maker, "several_gamecores", lambda *a: made.append(make(*a)) or made[-1]
    )
    path = tmp_path / "league.yaml"
    path.write_text(LEAGUE)
    composition = load(str(path)).composition
    assert composition is not None
    goal = composition.goal.completed(reward_threshold=None, max_frames=6000)
    killed: list[int] = []

    def kill(figures: Any, save: Any) -> None:
        if figures["frames"] > 1500 and not killed:
            killed.append(made[0]._actors._pool.pids()[0])
            os.kill(killed[0], signal.SIGKILL)

    with bray.init(tmp_path, "trial", runtime="ray") as run:
        run.listen(kill)
        outcome = train.train_composition(run, composition, goal)
        assert made[0]._actors._pool.pids()[0] not in killed

    assert killed
    assert outcome.frames >= 6000
    league = json.loads((tmp_path / "trial" / "league.json").read_text())
    assert {name.partition(":")[0] for name in league["versions"]} == {"main", "rival"}
