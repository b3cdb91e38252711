"""Actors in worker processes on Ray, played by gamecores that are real processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bray_actor import GamecoreFleet, PolicyActor, PolicyConfig
from bray_actor.gamecores.gamecore import play
from bray_core.protocols import ActorProtocol, Answer

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


def make_actors() -> Callable[[str], ActorProtocol]:
    """Called in each worker, as where a model's replica would be made."""

    class Even:
        version = 0

        async def infer(self, observation: Any, batch: bool = False) -> Answer:
            return Answer({"logits": np.zeros(2, np.float32)}, 0)

    return PolicyActor.factory(Even(), PolicyConfig())  # type: ignore[arg-type]


def test_workers_answer_and_a_killed_one_is_played_again() -> None:
    from bray_actor.remote import RemoteActor

    actors = RemoteActor("actors", make_actors, num_workers=2)
    fleet = GamecoreFleet("CartPole-v1", lambda: actors.worker_addresses, num_processes=4)
    try:
        for address in actors.worker_addresses:
            assert len(play("cartpole", address, episodes=2)) == 2
        fleet.start()
        before = dict(enumerate(fleet.pids))
        wait_for_sessions(fleet, actors, 4)
        os.kill(actors.pids()[0], signal.SIGKILL)
        wait_for_sessions(fleet, actors, 4, lambda: fleet.pids[0] != before[0])
        assert fleet.pids[1::2] == [before[1], before[3]], "the other worker's play on"
    finally:
        fleet.stop()
        actors.close()


def wait_for_sessions(
    fleet: GamecoreFleet, actors: Any, number: int, also: Callable[[], bool] = lambda: True
) -> None:
    """Watch the fleet, as a run does, until so many sessions are open."""
    deadline = time.monotonic() + 60
    while True:
        fleet.check()
        if also() and actors.stats()["sessions"] == number:
            return
        assert time.monotonic() < deadline
        time.sleep(0.05)
