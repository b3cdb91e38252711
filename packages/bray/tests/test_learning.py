"""The loop that recipes share, with parts that only count."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bray
from bray.goal import Goal, Outcome
from bray.training.learning import Learning, Pace
from bray_actor import Played


class Parts:
    """Rollouts, trainer and model in one: 10 frames a collect, one episode of return 5 each."""

    version = 4

    def __init__(self) -> None:
        self.did: list[Any] = []
        self.frames = 0
        self.fails_at = 10**9

    def collect(self, steps: int) -> None:
        self.did.append(("collect", steps))
        self.frames += 10

    def poll(self) -> Played:
        frames, self.frames = self.frames, 0
        return Played(frames, [5.0])

    def run(self, replays: int, checkpoint: bool = True) -> None:
        self.did.append(("train", replays))

    def start(self) -> None:
        self.did.append("start")

    def wait(self, timeout_s: float) -> bool:
        self.did.append("wait")
        self.frames += 10
        if len(self.did) > self.fails_at:
            raise ValueError("the trainer broke")
        return False

    def checkpoint(self) -> Path:
        return Path(f"{self.version}.safetensors")

    def pin(self, version: int, pinned: bool = True) -> None:
        self.pinned = version if pinned else None

    def progress(self) -> dict[str, float]:
        return {}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[bray.Run]:
    with bray.init(tmp_path, "trial") as run:
        yield run


def learning(run: bray.Run, parts: Parts, goal: Goal, returns: list[float]) -> Learning:
    def evaluate() -> list[float]:
        parts.did.append("evaluate")
        return returns

    return Learning(
        run,
        "a test",
        trainer=parts,
        rollouts=parts,
        model=parts,
        pace=Pace(steps=3, replays=2, warmup_frames=25),
        goal=goal,
        evaluate=evaluate,
    )


def test_playing_and_training_take_turns_after_the_warm_up(run: bray.Run) -> None:
    parts = Parts()
    outcome = learning(run, parts, Goal(evaluate_at=9.0, max_frames=50), [1.0]).until_goal()
    play, train = ("collect", 3), ("train", 2)
    save = ("train", 0)
    assert parts.did == [play, play, play, play, train, play, train, "evaluate", save]
    assert (outcome.reached, outcome.evaluation_return, outcome.frames) == (False, 1.0, 50)
    assert outcome.version == 4
    written = json.loads((run.experiment.path / "result.json").read_text())
    assert Outcome(**written) == outcome


def test_a_good_training_return_lets_it_evaluate_now_and_then(run: bray.Run) -> None:
    """From 20 episodes on, with at least a fiftieth of the frames in between."""
    parts = Parts()
    goal = Goal(episode_return=6.0, evaluate_at=5.0, max_frames=1_500)
    assert not learning(run, parts, goal, [5.0, 6.0]).until_goal().reached
    at = [i for i, did in enumerate(parts.did) if did == "evaluate"]
    collects = [parts.did[:i].count(("collect", 3)) for i in at]
    assert collects[:3] == [20, 23, 26]
    assert collects[-1] == 150


def test_it_ends_when_an_evaluation_reaches_the_goal(run: bray.Run) -> None:
    goal = Goal(episode_return=6.0, evaluate_at=5.0, max_frames=1_500)
    outcome = learning(run, Parts(), goal, [5.0, 7.0]).until_goal()
    assert outcome.reached
    assert outcome.frames == 200


def test_on_ray_it_starts_the_trainer_and_watches(
    run: bray.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bray.Run, "is_local", False)
    parts = Parts()
    learning(run, parts, Goal(evaluate_at=9.0, max_frames=20), [1.0]).until_goal()
    assert parts.did == ["start", "wait", "wait", "evaluate"]
    broken = Parts()
    broken.fails_at = 3
    with pytest.raises(ValueError, match="the trainer broke"):
        learning(run, broken, Goal(evaluate_at=9.0), [1.0]).until_goal()
