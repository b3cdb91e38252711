"""The lock of a plain buffer, on which threads and coroutines wait for a change."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from bray_core.errors import ClosedError

T = TypeVar("T")


class WaitableLock:
    """A lock and its waiters: a condition that can be closed and that coroutines can await.

    A waiter hands over an attempt, which is made under the lock at once and after each change. A
    coroutine needs no thread for it; a cancelled one has either taken nothing or already got what
    it took.

    Args:
        name: Name of the buffer, for messages.

    Examples:
        >>> lock, items = WaitableLock("buffer"), [1]
        >>> lock.wait_for(lambda: items.pop() if items else None, timeout_s=0)
        1
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.mutex = threading.RLock()
        self._changed = threading.Condition(self.mutex)
        self._num_threads = 0
        self._listeners: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        self.is_closed = False

    @property
    def num_waiting(self) -> int:
        """Number of threads and coroutines that wait."""
        return self._num_threads + len(self._listeners)

    def check_open(self) -> None:
        """Raise ClosedError if the lock was closed."""
        if self.is_closed:
            raise ClosedError(f"{self._name}: closed")

    def notify(self) -> None:
        """Let every waiter make its attempt again; the lock must be held."""
        if self._num_threads:
            self._changed.notify_all()
        if self._listeners:
            self._notify_listeners()

    def _notify_listeners(self) -> None:
        for event, loop in list(self._listeners.items()):
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:  # its loop was closed
                self._listeners.pop(event, None)

    def close(self) -> None:
        """Wake every waiter with ClosedError; again is harmless."""
        with self.mutex:
            self.is_closed = True
            self.notify()

    def wait_for(self, attempt: Callable[[], T | None], timeout_s: float | None) -> T | None:
        """Make an attempt under the lock until it returns something; None at the deadline.

        Raises:
            ClosedError: the lock was closed.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self.mutex:
            while True:
                self.check_open()
                found = attempt()
                left = None if deadline is None else deadline - time.monotonic()
                if found is not None or (left is not None and left <= 0):
                    return found
                self._num_threads += 1
                self._changed.wait(left)
                self._num_threads -= 1

    async def wait_for_async(
        self, attempt: Callable[[], T | None], timeout_s: float | None
    ) -> T | None:
        """`wait_for` for a coroutine: the event loop goes on meanwhile."""
        changed = asyncio.Event()
        with self.mutex:
            self._listeners[changed] = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    with self.mutex:
                        self.check_open()
                        found = attempt()
                    if found is not None:
                        return found
                    await changed.wait()
                    changed.clear()
        except TimeoutError:
            return None
        finally:
            with self.mutex:
                self._listeners.pop(changed, None)
