"""A trainer in a worker on Ray."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from bray_core import metrics
from bray_core.errors import WorkerLostError
from bray_core.protocols import Trainer
from bray_core.remote import WorkerPool

logger = logging.getLogger(__name__)

_START_TIMEOUT_S = 120.0
_WAIT_SLICE_S = 5.0
_CONCURRENCY = 4
"""`progress` and `stop` are answered while a `wait` is under way."""


class RemoteTrainer:
    """A handle over one trainer in a process of its own.

    If that process dies, `wait` starts it again: the factory makes a new `Trainer`, which resumes
    from the newest checkpoint.

    Args:
        name: of the pool.
        factory: makes the `Trainer`, in the worker.
        num_cpus: CPUs that the worker claims from Ray.
    """

    def __init__(self, name: str, factory: Callable[[], Trainer], num_cpus: float = 1.0) -> None:
        self._pool = WorkerPool(name, factory, num_cpus=num_cpus, max_concurrency=_CONCURRENCY)
        self._progress: dict[str, float] = {}

    def start(self) -> None:
        """Start, or go on after a pause."""
        self._pool.call("start", timeout_s=_START_TIMEOUT_S)

    def wait(self, timeout_s: float) -> bool:
        """Wait until the trainer pauses or fails; return whether it did, or raise its error."""
        deadline = time.monotonic() + timeout_s
        while True:
            left = max(0.0, deadline - time.monotonic())
            try:
                slice_s = min(left, _WAIT_SLICE_S)
                if self._pool.call("wait", slice_s, timeout_s=slice_s + _START_TIMEOUT_S):
                    return True
            except WorkerLostError as error:
                logger.warning("trainer: lost, starting it again: %s", error)
                metrics.record("trainer/restarts", 1, kind="count")
                self._pool.wait_ready(_START_TIMEOUT_S)
                self.start()
            if left <= _WAIT_SLICE_S:
                return False

    def stop(self) -> None:
        """Finish the replay at hand, write a checkpoint and stop."""
        self._pool.call("stop", timeout_s=_START_TIMEOUT_S)

    def progress(self) -> dict[str, float]:
        """Return the latest figures; those before, while the worker is being restarted."""
        try:
            self._progress = self._pool.call("progress")
        except WorkerLostError:
            logger.warning("trainer: no progress: the worker is lost")
        return self._progress

    def call(self, method: str, *args: Any, timeout_s: float = 60.0) -> Any:
        """Call a method of the user's own trainer."""
        return self._pool.call(method, *args, timeout_s=timeout_s)

    def drain_metrics(self) -> list[metrics.Sample]:
        """Gather what the worker recorded."""
        return self._pool.drain_metrics()

    def close(self) -> None:
        """End the worker; without a `stop` before, what came after the last checkpoint is lost."""
        self._pool.close()
