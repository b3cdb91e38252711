"""What `RemoteTrainer` does when ranks are lost, step by step, with a pool that is played."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bray_core.errors import DeadlineError, WorkerLostError


class Pool:
    """Answers each call with what `answers` has for it, rank by rank; notes all calls."""

    name = "pair"
    size = 2

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.calls: list[Any] = []
        self.answers: dict[str, list[list[Any]]] = {}
        self.waits_s: list[float] = []

    def submit(self, method: str, *arguments: Any, worker: int) -> Any:
        if worker == 0:
            self.calls.append(method)
        answers = self.answers[method]
        return answers[0][0] if worker == 0 else (answers.pop(0) if answers[1:] else answers[0])[1]

    def result(self, answer: Any, timeout_s: float) -> Any:
        self.waits_s.append(timeout_s)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def restart(self, worker: int) -> None:
        self.calls.append(("restart", worker))

    def call(self, method: str, *arguments: Any, worker: int) -> Any:
        return {"offer": 1234, "progress": ({"replays": 3}, True, False)}[method]

    def call_all(self, method: str, timeout_s: float) -> list[str]:
        return ["192.0.2.1", "192.0.2.1"]


GONE = WorkerLostError("gone")
NEW = [("new", 1), ("new", 2)]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Any, Pool]]:
    pytest.importorskip("ray")
    from bray_trainer import remote

    monkeypatch.setattr(remote, "WorkerPool", Pool)
    monkeypatch.setattr(remote, "_RETRY_S", 0.0)

    def make(**options: Any) -> tuple[Any, Pool]:
        trainer = remote.RemoteTrainer("pair", lambda: None, num_workers=2, **options)
        pool: Any = trainer._pool
        pool.answers = {
            "state": [NEW],
            "join": [[None, None]],
            "start": [["training", "training"]],
            "replace": [["training", "training"]],
        }
        return trainer, pool

    return make


def test_new_workers_are_joined_and_started(make: Any) -> None:
    trainer, pool = make()
    trainer.start()
    assert pool.calls == ["state", "join", "start"]
    pool.answers["wait"] = [["training", "paused"], ["paused", "paused"]]
    assert not trainer.wait(0), "one of them is not there yet"
    assert trainer.wait(0)
    pool.answers["state"] = [[("ready", 1), ("ready", 2)]]
    trainer.start()
    assert pool.calls[-2:] == ["state", "start"], "after a pause the group is still there"


@pytest.mark.parametrize(
    "outcomes",
    [
        [["lost", GONE]],
        [["training", GONE], ["lost", GONE]],
        [["training", GONE], ["training", GONE]],  # it hangs
        [["lost", "idle"]],  # replaced already
    ],
)
def test_a_loss_brings_all_into_new_processes(make: Any, outcomes: list[list[Any]]) -> None:
    trainer, pool = make()
    trainer.start()
    pool.calls.clear()
    pool.answers["wait"] = outcomes
    assert not trainer.wait(0)
    assert ("restart", 0) in pool.calls
    pool.answers["state"] = [[("spoiled", 1), GONE], [GONE, ("new", 3)], [("new", 4), ("new", 3)]]
    pool.calls.clear()
    for _ in range(2):
        assert not trainer.wait(0)
        assert pool.calls[-1] == "state", "not killed twice, nor started while one is absent"
    assert not trainer.wait(0)
    assert pool.calls[-3:] == ["state", "join", "replace"]
    pool.answers["wait"] = [["paused", "paused"]]
    assert trainer.wait(0)


def test_an_error_of_ones_own_is_raised_and_not_taken_for_a_loss(make: Any) -> None:
    trainer, pool = make()
    trainer.start()
    pool.answers["wait"] = [["lost", ValueError("my fault")]]
    with pytest.raises(ValueError, match="my fault"):
        trainer.wait(0)
    pool.answers["wait"] = [["lost", "training"], ["lost", ValueError("a moment later")]]
    with pytest.raises(ValueError, match="a moment later"):
        trainer.wait(0)


def test_one_that_does_not_come_back_is_named(make: Any) -> None:
    trainer, pool = make(restart_timeout_s=1e-6)
    trainer.start()
    pool.answers["wait"] = [["lost", GONE]]
    assert not trainer.wait(0)
    pool.answers["state"] = [[("new", 3), GONE]]
    message = "the worker of rank 1 is not back after 1e-06 s: does the cluster still have a node"
    with pytest.raises(DeadlineError, match=message):
        trainer.wait(0)


def test_a_stop_after_a_loss_says_what_is_missing(make: Any) -> None:
    trainer, pool = make()
    trainer.start()
    pool.answers["stop"] = [["lost", GONE], ["idle", "idle"]]
    with pytest.raises(WorkerLostError, match="what came after its last checkpoint is lost"):
        trainer.stop()
    trainer.stop()


def test_a_stop_waits_for_a_replay_that_takes_long(make: Any) -> None:
    """A run on Ray could not end where one took more than a minute."""
    from bray_trainer.trainer import STOP_TIMEOUT_S

    trainer, pool = make()
    trainer.start()
    pool.answers["stop"] = [["paused", "paused"]]
    trainer.stop()
    assert pool.waits_s[-1] > STOP_TIMEOUT_S > 60
