"""Workers on Ray for calls that any worker can answer, and that may be made twice."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from bray_core.errors import WorkerLostError
from bray_core.remote.calls import raised_by_method
from bray_core.remote.health import explain_lost_workers
from bray_core.remote.pool import WorkerPool
from bray_core.remote.worker_process import worker_index

T = TypeVar("T")

logger = logging.getLogger(__name__)

_CALL_TIMEOUT_S = 900.0
_RESTART_TIMEOUT_S = 120.0


def with_worker_index(make: Callable[..., T]) -> Callable[[], T]:
    """Return a function that calls `make(worker=…)` with the number of the worker it runs in."""
    return partial(_with_worker_index, make)


def _with_worker_index(make: Callable[..., T]) -> T:
    return make(worker=worker_index())


class RemoteWorkers:
    """The twin of `bray_core.workers.Workers` in processes on Ray.

    A worker that dies is replaced, and its calls are made again. In a cluster the workers are
    shared out over the nodes in proportion to their CPUs.

    Args:
        name: Name of the pool, unique in the cluster.
        factory: Makes the instance of a worker, in its process.
        num_workers: Number of processes.
    """

    def __init__(self, name: str, factory: Callable[[], Any], num_workers: int = 1) -> None:
        self._pool = WorkerPool(name, factory, num_workers=num_workers, spread=True)

    @property
    def size(self) -> int:
        """Number of workers, which is the number of calls that run at a time."""
        return self._pool.size

    def map(self, method: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a method with each of the arguments, by turns; return the results in their order.

        Raises:
            Exception: What the method raised.
            DeadlineError: A call takes a quarter of an hour, or a dead worker is not back after
                two minutes.
            WorkerLostError: A worker of these or of another pool of this process died too often;
                quotes its last words.
        """
        with explain_lost_workers():
            return self._map(method, calls)

    def _map(self, method: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        refs = [self._pool.submit(method, *arguments) for arguments in calls]
        return [self._result(ref, method, calls[index]) for index, ref in enumerate(refs)]

    def _result(self, ref: Any, method: str, arguments: tuple[Any, ...]) -> Any:
        while True:
            try:
                return self._pool.result(ref, _CALL_TIMEOUT_S)
            except WorkerLostError as error:
                if raised_by_method(error):
                    raise
                logger.warning("workers: %s is called again: %s", method, error)
                self._pool.wait_ready(_RESTART_TIMEOUT_S)
                ref = self._pool.submit(method, *arguments)

    def close(self) -> None:
        """Kill the workers."""
        self._pool.close()
