"""An event loop in a thread of its own, for code without one."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import logging
import threading
import time
import weakref
from collections.abc import Coroutine
from typing import Any, TypeVar

from bray_core.errors import ClosedError, DeadlineError

T = TypeVar("T")

logger = logging.getLogger(__name__)

_STOP_TIMEOUT_S = 5.0


class EventLoopThread:
    """Runs coroutines in a daemon thread; uses uvloop where it is installed.

    A loop that nobody stopped ends when the interpreter exits.

    Examples:
        >>> async def answer() -> int:
        ...     return 42
        >>> loop = EventLoopThread("demo")
        >>> loop.run(answer())
        42
        >>> loop.stop()
    """

    def __init__(self, name: str) -> None:
        self.loop = _new_event_loop()
        self._lock = threading.Lock()
        self._stopping = False
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()
        _running.add(self)

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            self.loop.run_until_complete(_cancel_all())
        finally:
            self.loop.close()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on the loop, and must not wait for it."""
        return threading.current_thread() is self._thread

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine on the loop and return its future.

        Raises:
            ClosedError: The loop was stopped.
        """
        with self._lock:  # what is submitted before the loop is told to stop gets an answer
            if not self._stopping:
                return asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        coroutine.close()
        raise ClosedError(f"event loop {self._thread.name}: already stopped")

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run a coroutine on the loop and wait for its result.

        Raises:
            DeadlineError: It took longer than `timeout_s`, and was cancelled.
            ClosedError: The loop was stopped.
        """
        if self.is_current:
            coroutine.close()
            raise RuntimeError("EventLoopThread.run: called from its own loop: await instead")
        future = self.submit(coroutine)
        try:
            return future.result(timeout_s)
        except concurrent.futures.TimeoutError:
            if future.done():  # the coroutine's own timeout, not ours
                raise
            future.cancel()
            raise DeadlineError(f"no result within {timeout_s} s") from None

    def stop(self) -> None:
        """Cancel what still runs, end the thread and close the loop; a second call is harmless."""
        self._tell_to_stop()
        if self.is_current:
            return  # it ends after the callback that called us
        self._join(2 * _STOP_TIMEOUT_S)

    def _tell_to_stop(self) -> None:
        with self._lock:
            if not self._stopping:
                self._stopping = True
                self.loop.call_soon_threadsafe(self.loop.stop)

    def _join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            logger.warning("event loop %s: a callback blocks it, left behind", self._thread.name)


_running: weakref.WeakSet[EventLoopThread] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """End the loops that nobody stopped: their threads can crash an interpreter that exits."""
    left = list(_running)
    for loop in left:
        loop._tell_to_stop()
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    for loop in left:
        loop._join(max(0.0, deadline - time.monotonic()))


async def _cancel_all() -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _STOP_TIMEOUT_S
    while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=max(deadline - loop.time(), 0.0))
        if loop.time() >= deadline:
            logger.warning("event loop: tasks that refuse to be cancelled: %s", tasks)
            break
    await loop.shutdown_asyncgens()


def _new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
