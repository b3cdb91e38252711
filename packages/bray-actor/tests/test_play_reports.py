"""What workers on Ray are told, and those that take the place of dead ones."""

from __future__ import annotations

from typing import Any

import pytest

from bray_actor.reset_options import NewResetOptions
from bray_actor.runners.rollouts import Played
from bray_core.errors import DeadlineError, WorkerLostError


class Pool:
    """A pool of one worker, whose process changes."""

    size = 1

    def __init__(self) -> None:
        self.pid = 1
        self.heard: list[Any] = []

    def submit(self, method: str, *arguments: Any, worker: int) -> Any:
        if method == "tell":
            self.heard += arguments
        return self.pid, Played(1, [])

    def result(self, ref: Any, timeout_s: float) -> Any:
        return ref


def test_a_new_process_hears_the_newest_of_each_kind() -> None:
    from bray_actor.remote import PlayReports

    pool: Any = Pool()
    reports = PlayReports(pool, "rollouts", "actor/worker_restarts")
    reports.poll()
    news: list[Any] = ["old", "opponents", NewResetOptions({"a": 1}), NewResetOptions({"a": 2})]
    for one in news:
        reports.tell(one)
    assert pool.heard == news
    pool.heard.clear()
    pool.pid = 2
    reports.poll()
    assert pool.heard == ["opponents", NewResetOptions({"a": 2})]


def test_one_that_takes_the_place_of_a_worker_lost_at_its_start_hears_it() -> None:
    from bray_actor.remote import PlayReports

    class Lost(Pool):
        is_lost = True

        def result(self, ref: Any, timeout_s: float) -> Any:
            if self.is_lost:
                raise WorkerLostError("the worker died")
            return ref

    pool: Any = Lost()
    reports = PlayReports(pool, "rollouts", "actor/worker_restarts")
    reports.tell("opponents")
    reports.poll()
    pool.heard.clear()
    pool.is_lost = False
    for _ in range(2):
        reports.poll()
    assert pool.heard == ["opponents"]


@pytest.mark.parametrize("kind", [DeadlineError, WorkerLostError])
def test_what_a_worker_raises_is_not_taken_for_its_silence_or_loss(kind: type[Exception]) -> None:
    """Its thread has ended: it would be waited for without end."""
    from ray.exceptions import RayTaskError

    from bray_actor.remote import PlayReports

    class Stopped(Pool):
        def result(self, ref: Any, timeout_s: float) -> Any:
            raise kind("environment: stands still") from RayTaskError("report", "", ValueError())

    pool: Any = Stopped()
    reports = PlayReports(pool, "rollouts", "actor/worker_restarts")
    with pytest.raises(kind, match="stands still"):
        reports.poll()
