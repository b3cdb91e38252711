"""Checking that workers are alive, and explaining why one is not restarted."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Protocol

import ray

from bray_core.errors import WorkerLostError

_CHECK_EVERY_S = 1.0
"""Least time between two checks of a worker."""


class WatchedPool(Protocol):
    """A pool whose workers `check_workers` looks at."""

    @property
    def size(self) -> int:
        """Number of workers; 0 once the pool is closed."""
        ...

    def check(self, timeout_s: float = 0.0) -> None:
        """Raise WorkerLostError where a worker is dead and is not started again."""
        ...


class _Watch:
    """The pools that this process made and still holds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pools: weakref.WeakSet[WatchedPool] = weakref.WeakSet()
        self._next_s = 0.0

    def add(self, pool: WatchedPool) -> None:
        with self._lock:
            self._pools.add(pool)

    def check(self, timeout_s: float) -> None:
        if not self._lock.acquire(blocking=False):  # another thread looks
            return
        try:
            if timeout_s or time.monotonic() >= self._next_s:
                self._next_s = time.monotonic() + _CHECK_EVERY_S
                for pool in [pool for pool in self._pools if pool.size]:
                    pool.check(timeout_s)
        finally:
            self._lock.release()


_watch = _Watch()


def watch_pool(pool: WatchedPool) -> None:
    """Let `check_workers` look at a pool for as long as somebody holds it."""
    _watch.add(pool)


def check_workers(timeout_s: float = 0.0) -> None:
    """Raise an error if a worker died too often. Quick enough for every turn of a loop.

    Args:
        timeout_s: Seconds to wait for workers that do not answer at once.

    Raises:
        WorkerLostError: A worker of a pool that this process made is dead and is not started
            again; quotes its last words.
    """
    if ray.is_initialized():
        _watch.check(timeout_s)


@contextlib.contextmanager
def explain_lost_workers() -> Iterator[None]:
    """Replace an error that follows from a dead worker by the one that says why it died."""
    check_workers()
    try:
        yield
    except Exception as error:
        try:
            check_workers(_CHECK_EVERY_S)
        except WorkerLostError as reason:
            raise reason from error
        raise
