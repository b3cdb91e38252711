"""One run with three models, four buffers and two sources: its figures add up."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from composed_runs import train

import bray
from bray.composition import turns
from bray.sources import demonstrations
from bray_core.protocols import Answer

TEMPLATE = """\
models: {hunter: {hidden: [16]}, runner: {hidden: [16]}, pole: {hidden: [16]}}
trainers:
  hunter: {algorithm: ppo, steps_per_replay: 192, minibatch_size: 64, epochs: 1}
  runner: {algorithm: dqn, batch_size: 32}
  pole:
    {algorithm: rl_imitation, steps_per_replay: 128, epochs: 1, cloning_steps: 5,
    inputs: {demonstrations: shown}}
buffers:
  hunter: {kind: queue, batch_steps: 192, capacity: 400}
  runner: {warmup_frames: 64}
  pole: {kind: queue, batch_steps: 128, capacity: 400}
  shown: {kind: dataset, from: recordings, path: shown}
agents: {hunter: {}, runner: {}, pole: {}}
sources:
  field:
    {kind: agents, environment: simple_tag_v3, num_envs: 2,
    agents: {"adversary_*": hunter, "agent_*": runner}}
  cart: {environment: CartPole-v1, num_envs: 2, agents: {"*": pole}}
goal: {agent: hunter, max_frames: 1500, evaluation_episodes: 1}
"""


class Upright:
    """Pushes to the side to which the pole falls."""

    version = 0

    async def infer(self, observation: Any, batch: bool = False) -> Answer:
        left, right = (0.9, 0.1) if observation[2] + 0.5 * observation[3] < 0 else (0.1, 0.9)
        return Answer({"logits": np.log([left, right]), "value": np.float32(0)}, 0)


@pytest.mark.long
def test_frames_by_seat_are_the_rows_of_buffers_and_the_frames_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    demonstrations.record(tmp_path / "shown", "CartPole-v1", Upright(), episodes=2, seed=1)
    (tmp_path / "three.yaml").write_text(TEMPLATE)
    buffers: dict[str, Any] = {}
    by_seat: Counter[str] = Counter()
    make, merge = bray.Run.buffer, turns.merged

    def noted(run: bray.Run, name: str, *args: Any, **options: Any) -> Any:
        buffers[name] = make(run, name, *args, **options)
        return buffers[name]

    def counted(*args: Any) -> Any:
        played = merge(*args)
        by_seat.update(played.frames_by_seat)
        return played

    monkeypatch.setattr(bray.Run, "buffer", noted)
    monkeypatch.setattr(turns, "merged", counted)
    versions: dict[str, int] = {}
    stats: dict[str, Any] = {}
    metrics: dict[str, float] = {}

    def look(run: bray.Run) -> None:
        versions.update({name: model.version for name, model in run.models.items()})
        stats.update({name: one.stats() for name, one in buffers.items()})
        metrics.update(run.metrics())

    outcome = train(tmp_path / "three.yaml", tmp_path / "trials" / "three", look=look)

    assert set(versions) == set(by_seat) == {"hunter", "runner", "pole"}
    assert outcome.frames == sum(by_seat.values()) == metrics["actor/steps"]
    for name, batch in (("hunter", 192), ("pole", 128)):
        held = stats[f"{name}-experience"]
        assert versions[name] >= 1, "each replay makes a version"
        assert by_seat[name] == versions[name] * batch + held["queued_steps"]
        assert metrics[f"trainer/frames{{trainer={name}}}"] == versions[name] * batch
        assert held["dropped"] == 0
        assert held["pushed"] == held["popped"] + held["queued"]
    held = stats["runner-experience"]
    assert by_seat["runner"] == held["queued"], "the replay holds each of its steps"
    assert held["popped"] == 32 * (by_seat["runner"] - 64), "a batch for each step after the first"
    assert by_seat["hunter"] == 3 * by_seat["runner"], "three hunters run after it, all the time"
