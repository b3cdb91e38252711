"""The process of one worker: the instance that it holds, and how often it was restarted."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Any

import ray
from ray import cloudpickle
from ray.experimental import internal_kv

from bray_core import metrics
from bray_core.errors import WorkerLostError
from bray_core.metrics import uplink
from bray_core.remote.restart_limit import RestartLimit, WorkerHistory

_NAMESPACE = b"bray"
"""Namespace of the workers' histories in the store of Ray's head."""
_index = 0


def worker_index() -> int:
    """Return the index of this process in its pool, from 0. Factories may ask, too."""
    return _index


class _Worker:
    """A worker process: the plain instance, and what the pool asks about it."""

    def __init__(
        self,
        stored_factory: bytes | list[Any],
        index: int,
        num_workers: int,
        pool: str,
        hub: str | None,
        limit: RestartLimit | None,
    ) -> None:
        global _index
        _index = index
        if hub is not None:
            uplink.join(pool, index, hub)
        if limit is not None:
            _check_history(limit)
        self._num_workers = num_workers
        is_inline = isinstance(stored_factory, bytes)
        packed = stored_factory if is_inline else ray.get(stored_factory[0])
        factory, args, kwargs = cloudpickle.loads(packed)
        self._instance = factory(*args, **kwargs)

    def invoke(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return getattr(self._instance, method)(*args, **kwargs)

    def describe(self) -> tuple[int, int, str]:
        """Return the size of the pool, the id of this process and that of its node."""
        return self._num_workers, os.getpid(), ray.get_runtime_context().get_node_id()


def _check_history(limit: RestartLimit) -> None:
    """Count the death of the process before this one; refuse to start after too many.

    An error that is raised while a worker is made keeps Ray from starting it again.
    """
    key = f"worker/{ray.get_runtime_context().get_actor_id()}".encode()
    kept = internal_kv._internal_kv_get(key, namespace=_NAMESPACE)
    history = WorkerHistory.decode(kept)
    if kept is not None:
        metrics.record("worker/restarts", 1, kind="count")
        history = history.died(limit)
        if limit.is_exceeded(history.deaths, history.deaths[-1]):
            raise WorkerLostError(
                f"{len(history.deaths)} times within {limit.window_s:g} s, so it is not started "
                f"again; its last words: {history.last_words()}"
            )
    history = replace(history, stderr=_stderr_file())
    internal_kv._internal_kv_put(key, history.encode(), overwrite=True, namespace=_NAMESPACE)


def _stderr_file() -> str:
    try:
        return os.readlink(f"/proc/self/fd/{sys.stderr.fileno()}")
    except (OSError, ValueError):  # not Linux, or closed
        return ""


# `describe` is answered while calls run.
ray.method(concurrency_group="control")(_Worker.describe)
RemoteWorker: Any = ray.remote(concurrency_groups={"control": 1})(_Worker)
