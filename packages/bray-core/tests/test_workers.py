"""Workers here and on Ray give the same answers."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from bray_core.errors import WorkerLostError
from bray_core.workers import Workers


class Calculator:
    """A worker that can be told to die once."""

    def __init__(self) -> None:
        self.is_closed = False

    def divide(self, a: int, b: int) -> float:
        return a / b

    def lose_simulator(self) -> None:
        raise WorkerLostError("the simulator of this worker ended")

    def die_once(self, marker: str) -> str:
        if not Path(marker).exists():
            Path(marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return "alive"

    def close(self) -> None:
        self.is_closed = True


def check(workers: Any) -> None:
    calls = [(6, 2), (9, 1), (8, 4), (1, 2), (5, 1)]
    assert workers.map("divide", calls) == [3.0, 9.0, 2.0, 0.5, 5.0]
    with pytest.raises(ZeroDivisionError):
        workers.map("divide", [(1, 1), (1, 0)])
    with pytest.raises(WorkerLostError, match="the simulator"):  # the worker itself lives
        workers.map("lose_simulator", [()])
    assert workers.map("divide", []) == []


def test_work_is_done_here() -> None:
    made: list[Calculator] = []

    def make() -> Calculator:
        made.append(Calculator())
        return made[0]

    workers = Workers(make)
    assert workers.size == 1
    check(workers)
    workers.close()
    assert made[0].is_closed


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_work_is_done_on_ray_also_where_a_worker_dies(tmp_path: Path) -> None:
    from bray_core.remote.workers import RemoteWorkers

    workers = RemoteWorkers("calculators", Calculator, num_workers=2)
    try:
        assert workers.size == 2
        check(workers)
        marker = str(tmp_path / "died")
        assert workers.map("die_once", [(marker,), (marker,), (marker,)]) == ["alive"] * 3
        check(workers)
    finally:
        workers.close()


def test_what_a_method_raises_is_no_reason_to_call_it_again() -> None:
    from ray.exceptions import RayTaskError

    from bray_core.remote.workers import RemoteWorkers

    class Pool:
        def submit(self, method: str, *arguments: Any) -> None:
            pass

        def result(self, ref: Any, timeout_s: float) -> Any:
            raise WorkerLostError("its simulator ended") from RayTaskError("f", "", ValueError())

    workers = RemoteWorkers.__new__(RemoteWorkers)
    workers._pool = Pool()  # type: ignore[assignment]
    with pytest.raises(WorkerLostError, match="its simulator ended"):
        workers.map("lose_simulator", [()])
