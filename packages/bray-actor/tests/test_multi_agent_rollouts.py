"""Rollouts of several agents in workers, one of which is killed."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from bray_actor.multi_agent.making import MultiAgentSpec
from bray_actor.multi_agent.runner import MultiAgentRunner
from bray_actor.multi_agent.seat import Seat
from bray_actor.policy.policy_config import PolicyConfig
from bray_actor.runners.rollout_worker import RolloutWorker
from bray_actor.segment import segment_spec
from bray_core.action_vector import step_specs
from bray_core.errors import ConfigError
from bray_core.layout import Layout, Packed
from bray_core.protocols import Answer
from bray_core.spaces import Spaces


class Even:
    """A policy of equal chances for all that is allowed."""

    version = 3

    async def infer(self, seen: Any, batch: bool = False) -> Answer:
        logits = np.where(seen["action_mask"] == 1, 0.0, -1e9).astype(np.float32)
        return Answer({"logits": logits, "value": logits[:, 0] * 0}, self.version)


class Emptied:
    """A buffer that somebody else empties. The workers cannot import other files of tests."""

    def __init__(self, spaces: Spaces) -> None:
        self.layout = Layout(segment_spec(*step_specs(spaces), 4))

    def push(self, *segments: Packed, wait: bool = False, timeout_s: float | None = None) -> int:
        time.sleep(0.01)  # a worker that never waits hardly answers
        return len(segments)


class Named:
    """Seats the learner against an opponent of the name that it was told last."""

    def __init__(self, spaces: Spaces) -> None:
        model: Any = Even()
        kept: Any = Emptied(spaces)
        self._main = Seat(name="main", model=model, config=PolicyConfig(), buffer=kept)
        self._model, self._name = model, "nobody"

    def draw(self, generator: random.Random) -> Mapping[str, Seat]:
        other = Seat(name=self._name, model=self._model, config=PolicyConfig())
        return {"player_0": self._main, "player_1": other}

    def tell(self, news: Any) -> None:
        self._name = news["opponent"]


def make_named(worker: int) -> MultiAgentRunner:
    """Runs in the worker's process."""
    games = [MultiAgentSpec(environment="open_spiel:leduc_poker").make() for _ in range(2)]
    return MultiAgentRunner(games, Named(games[0].spaces("player_0")), seed=worker)


def wait_for(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def opponents(rollouts: Any) -> set[str]:
    """Return whom the games since the last poll were played against."""
    played = rollouts.poll()
    assert played.frames == sum(played.frames_by_seat.values())
    assert set(played.frames_by_seat) <= {"main"}
    return {result.seats["player_1"] for result in played.results}


def heard(pool: Any) -> set[str]:
    """Return whom the first worker's games since its last report were played against."""
    _, played = pool.result(pool.submit("report", worker=0), 60)
    return {result.seats["player_1"] for result in played.results}


def test_a_worker_passes_on_what_it_is_told() -> None:
    stopped = threading.Event()

    def make() -> Any:
        runner = make_named(0)
        cut = runner.cut

        def one_at_a_time() -> None:
            cut()
            time.sleep(0.01)
            if stopped.is_set():
                raise RuntimeError("the test is over")

        runner.cut = one_at_a_time  # type: ignore[method-assign]
        return runner

    worker = RolloutWorker(make, 20, lockstep=False)
    worker.tell({"opponent": "v1"})
    worker.tell({"opponent": "v2"})
    try:
        wait_for(lambda: opponents(worker) == {"v2"})
        worker.tell({"opponent": "v3"})
        wait_for(lambda: opponents(worker) == {"v3"})
    finally:
        stopped.set()
        assert worker._thread is not None
        worker._thread.join(60)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_a_killed_worker_hears_the_last_news_again() -> None:
    from bray_actor.remote import RemoteRollouts

    rollouts = RemoteRollouts("seats", make_named, num_workers=2, steps=10, lockstep=False)
    try:
        with pytest.raises(ConfigError, match=r"news: expected at most 100,000 bytes, got 1\d\d,"):
            rollouts.tell(bytes(100_001))
        wait_for(lambda: opponents(rollouts) == {"nobody"})
        rollouts.tell({"opponent": "v7"})
        wait_for(lambda: opponents(rollouts) == {"v7"})
        killed = rollouts._reports._pids[0]
        os.kill(killed, signal.SIGKILL)
        wait_for(lambda: bool(rollouts.poll()) and rollouts._reports._pids[0] != killed)
        wait_for(lambda: heard(rollouts._pool) == {"v7"})
    finally:
        rollouts.close()
