"""A trainer in a worker on Ray."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import ray.exceptions

from bray_core import metrics
from bray_core.errors import WorkerLostError
from bray_core.protocols import Trainer
from bray_core.remote import WorkerPool

logger = logging.getLogger(__name__)

_ANSWER_TIMEOUT_S = 120.0
"""Of calls that write or read checkpoints, or find the worker being restarted."""
_SLICE_S = 5.0
"""A long wait is several calls of this length."""
_RETRY_S = 0.5
_CONCURRENCY = 4
"""`progress` and `stop` are answered while a `wait` is under way."""


class _Worker:
    """The plain trainer of a worker process, and whether anyone has started it there."""

    def __init__(self, factory: Callable[[], Trainer]) -> None:
        self._trainer = factory()
        self._is_started = False

    def start(self) -> None:
        self._trainer.start()
        self._is_started = True

    def wait(self, timeout_s: float) -> bool | None:
        """Return whether it paused; None if it was never started."""
        return self._trainer.wait(timeout_s) if self._is_started else None

    def stop(self) -> bool:
        """Stop and return whether it had been started."""
        self._trainer.stop()
        return self._is_started

    def progress(self) -> tuple[dict[str, float], bool]:
        return self._trainer.progress(), self._is_started

    def call_own(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return getattr(self._trainer, method)(*args, **kwargs)


class RemoteTrainer:
    """A handle over one trainer in a process of its own.

    If that process dies, `wait` starts it again: the factory makes a new `Trainer`, which resumes
    from the newest checkpoint. One handle starts and waits; copies of it may ask for `progress`.

    Args:
        name: of the pool.
        factory: makes the `Trainer`, in the worker.
        num_cpus: CPUs that the worker claims from Ray.

    Raises:
        AlreadyExistsError: there is a pool of that name.
        WorkerLostError: the factory failed; says how.
    """

    def __init__(self, name: str, factory: Callable[[], Trainer], num_cpus: float = 1.0) -> None:
        self._pool = WorkerPool(
            name, _Worker, args=(factory,), num_cpus=num_cpus, max_concurrency=_CONCURRENCY
        )
        self._progress: dict[str, float] = {}
        self._is_started = False

    def start(self) -> None:
        """Start, or go on after a pause; errors as in `Trainer.start`."""
        self._pool.wait_ready(_ANSWER_TIMEOUT_S)
        self._pool.call("start", timeout_s=_ANSWER_TIMEOUT_S)
        self._is_started = True

    def wait(self, timeout_s: float) -> bool:
        """Wait until the trainer pauses or fails; return whether it did, or raise its error."""
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            if self._wait_once(min(_SLICE_S, left_s)):
                self._is_started = False
                self.progress()  # remembered, should the worker die while it stands still
                return True
            if time.monotonic() >= deadline:
                return False

    def _wait_once(self, timeout_s: float) -> bool:
        try:
            paused = self._pool.call("wait", timeout_s, timeout_s=timeout_s + _ANSWER_TIMEOUT_S)
            if paused is None and self._is_started:
                logger.warning("trainer %s: its worker was replaced: starts it", self._pool.name)
                metrics.record("trainer/restarts", 1, kind="count")
                self._pool.call("start", timeout_s=_ANSWER_TIMEOUT_S)
                return False
        except WorkerLostError as error:
            self._check_restarts(error)
            time.sleep(min(_RETRY_S, timeout_s))
            return False
        return paused is None or bool(paused)

    def _check_restarts(self, error: WorkerLostError) -> None:
        """Raise the error if Ray does not start the worker again."""
        if isinstance(error.__cause__, ray.exceptions.ActorDiedError):
            raise error
        logger.warning("trainer %s: waits for its worker's restart: %s", self._pool.name, error)

    def stop(self) -> None:
        """Finish the replay at hand, write a checkpoint and stop; errors as in `Trainer.stop`.

        Raises:
            WorkerLostError: the worker died, and with it what came after its last checkpoint.
        """
        was_started, self._is_started = self._is_started, False
        stopped = self._pool.call("stop", timeout_s=_ANSWER_TIMEOUT_S)
        if was_started and not stopped:
            raise WorkerLostError(
                f"trainer {self._pool.name}: its worker was replaced before the stop: "
                "what came after its last checkpoint is lost"
            )

    def progress(self) -> dict[str, float]:
        """Return the latest figures; those before, while the worker is being replaced."""
        try:
            progress, is_started = self._pool.call("progress")
        except WorkerLostError as error:
            self._check_restarts(error)
            return self._progress
        if is_started or not self._progress:  # else it has not resumed yet
            self._progress = progress
        return self._progress

    def call(self, method: str, *args: Any, timeout_s: float = 60.0, **kwargs: Any) -> Any:
        """Call a method of the user's own trainer."""
        return self._pool.call("call_own", method, args, kwargs, timeout_s=timeout_s)

    def drain_metrics(self) -> list[metrics.Sample]:
        """Gather what the worker recorded."""
        return self._pool.drain_metrics()

    def close(self) -> None:
        """End the worker; without a `stop` before, what came after the last checkpoint is lost."""
        self._pool.close()
