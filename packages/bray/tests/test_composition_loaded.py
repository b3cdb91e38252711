"""Policies that were trained together play on by themselves: each is found by its model's name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from composed_runs import EXAMPLES, train

import bray_model
from bray.composition import casting
from bray.composition.loaded import player_of
from bray.templates.composition import AgentPart
from bray_core.errors import ClosedError, ConfigError

FEW = ("num_envs=2", "goal.evaluation_episodes=2", "goal.max_frames=128")
STEPS = ("trainers.hunter.steps_per_replay=64", "trainers.runner.steps_per_replay=64")
ALONE = """\
models: {hunter: {load: TRIAL}}
trainers: {runner: {algorithm: ppo, steps_per_replay: 64}}
sources:
  field:
    kind: agents
    environment: simple_tag_v3
    agents: {"adversary_*": hunter, "agent_*": runner}
"""
MATCHES = f"""\
algorithm: ppo
model: {{hidden: [8]}}
source:
  kind: matches
  environment: "{Path(__file__).with_name("race_game.py")}:Race"
  num_envs: 2
trainer: {{steps_per_replay: 64, epochs: 1, minibatch_size: 32}}
"""


@pytest.mark.long
def test_a_runner_learns_from_hunters_that_learn_no_more(tmp_path: Path) -> None:
    train(EXAMPLES / "several" / "tag.yaml", tmp_path / "both", *FEW, *STEPS)
    (tmp_path / "alone.yaml").write_text(ALONE.replace("TRIAL", str(tmp_path / "both")))

    outcome = train(tmp_path / "alone.yaml", tmp_path / "alone", *FEW)

    assert outcome.version >= 2
    assert outcome.frames in range(128, 192), "hunters' steps do not count"
    hunter = AgentPart(name="hunter", model="hunter", load=str(tmp_path / "both"))
    manifest = json.loads((Path(player_of(hunter)) / "manifest.json").read_text())
    assert Path(player_of(hunter)).parents[1].name == "hunter"
    assert manifest["actor"]["config"]["spaces"]["observation"]["shape"] == [16]
    other = AgentPart(name="wolf", model="wolf", load=str(tmp_path / "both"))
    with pytest.raises(ConfigError, match=r"models\.wolf\.load: .* expected one of hunter, runner"):
        player_of(other)


@pytest.mark.long
def test_an_opponent_is_loaded_once_for_all_evaluations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "first.yaml").write_text(MATCHES + "goal: {max_frames: 64}")
    train(tmp_path / "first.yaml", tmp_path / "first", "goal.evaluation_episodes=2")
    goal = f"{{max_frames: 640, evaluation_episodes: 2, win_rate: 1.0, against: {tmp_path}/first}}"
    (tmp_path / "next.yaml").write_text(MATCHES + f"goal: {goal}")
    loaded: list[Any] = []
    played: list[Any] = []
    model, evaluate = bray_model.Model, casting.evaluate_match
    monkeypatch.setattr(
        bray_model, "Model", lambda *a, **o: loaded.append(model(*a, **o)) or loaded[-1]
    )
    monkeypatch.setattr(
        casting, "evaluate_match", lambda *a, **o: played.append(evaluate(*a, **o)) or [0.0]
    )

    train(tmp_path / "next.yaml", tmp_path / "next", exports=False)

    assert len(played) > 1
    (opponent,) = [one for one in loaded if one.name == "first"]
    with pytest.raises(ClosedError):
        opponent({"observation": np.zeros(2, np.float32)})
