"""An event loop in a thread of its own, for callers that have none."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from bray_core.errors import ClosedError, DeadlineError

T = TypeVar("T")

_STOP_TIMEOUT_S = 5.0


class EventLoopThread:
    """Runs coroutines in a daemon thread; uses uvloop where it is installed.

    Example:
        >>> async def answer() -> int:
        ...     return 42
        >>> loop = EventLoopThread("demo")
        >>> loop.run(answer())
        42
        >>> loop.stop()
    """

    def __init__(self, name: str) -> None:
        self.loop = _new_event_loop()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine on the loop and return its future.

        Raises:
            ClosedError: the loop was stopped.
        """
        if not self._thread.is_alive() or self.loop.is_closed():
            coroutine.close()
            raise ClosedError(f"event loop {self._thread.name}: already stopped")
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run a coroutine on the loop and wait for its result.

        Raises:
            DeadlineError: it took longer than `timeout_s`; it was cancelled.
            ClosedError: the loop was stopped.
        """
        if threading.current_thread() is self._thread:
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
        """Cancel what still runs, end the thread and close the loop; again is harmless."""
        if self.loop.is_closed():
            return
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(_cancel_all(), self.loop).result(_STOP_TIMEOUT_S)
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(_STOP_TIMEOUT_S)
        self.loop.close()


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


def _new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
