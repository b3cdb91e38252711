"""One worker of `RemoteRollouts`: it steps a runner in a thread until it is killed."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from bray_actor.runners.rollouts import AnyRunner, Played, collect, taken, tell
from bray_core.errors import ClosedError

logger = logging.getLogger(__name__)

_NICE = 4
"""Added to the niceness of what plays (its threads inherit it): where there are more threads than
cores, a trainer beside it keeps its core. A trainer that waits leaves all of them anyway."""


class RolloutWorker:
    """Steps without end from the first `poll` on.

    Args:
        make: Function that makes the runner, called in the thread that steps it.
        steps: Number of steps of each environment between two cuts.
        lockstep: Whether to wait after these for the next policy version.
    """

    def __init__(self, make: Callable[[], AnyRunner], steps: int, lockstep: bool) -> None:
        self._make = make
        self._steps = steps
        self._lockstep = lockstep
        self._lock = threading.Lock()
        self._played = Played(0, [])
        self._news: deque[Callable[[], Any]] = deque()
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None

    def poll(self) -> Played:
        """Start, if it has not, and return what was played since the last call.

        Raises:
            Exception: the error of environment, model or buffer.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rollouts", daemon=True)
            self._thread.start()
        with self._lock:
            if self._error is not None:
                raise self._error
            played, self._played = self._played, Played(0, [])
        return played

    def tell(self, news: Any) -> None:
        """Tell the runner what the driver says, before its next steps; see `rollouts.tell`."""
        self._news.append(lambda: news)

    def _run(self) -> None:
        if sys.platform == "linux":  # elsewhere it would be the whole process's
            os.nice(_NICE)
        try:
            asyncio.run(self._play())
        except Exception as error:
            if isinstance(error, ClosedError):  # the run ends, and this process soon
                logger.info("rollouts: playing ends: %s", error)
            else:
                logger.exception("rollouts: stopped by an error")
            with self._lock:
                self._error = error

    async def _play(self) -> None:
        runner = self._make()
        try:
            while True:
                while self._news:
                    tell(runner, self._news.popleft()())
                recorded = await collect(runner, self._steps)
                with self._lock:
                    self._played = self._played.joined(taken(runner, recorded))
                if self._lockstep:
                    await runner.next_version()
        finally:
            runner.close()
