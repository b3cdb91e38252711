"""Callers that wait, each on its own event loop, until a model reaches a version."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

from bray_core.errors import DeadlineError


class VersionWaiters:
    """Callers that wait for versions; wakes them on any loop from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[asyncio.Future[None], int] = {}

    async def wait(self, version: int, current: Callable[[], int], timeout_s: float | None) -> int:
        """Return `current()` once it is at least `version`.

        Raises:
            DeadlineError: The version did not come within `timeout_s` seconds.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._lock:
            if current() >= version:
                return current()
            self._waiting[future] = version
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            raise DeadlineError(
                f"version {version}: not published within {timeout_s} s; the newest is {current()}"
            ) from None
        finally:
            with self._lock:
                self._waiting.pop(future, None)
        return current()

    def announce(self, version: int) -> None:
        """Wake those who wait for `version` or an older one."""
        self._wake(lambda future: future.set_result(None), version)

    def fail(self, error: Exception) -> None:
        """Wake all with an error."""
        self._wake(lambda future: future.set_exception(error), None)

    def _wake(self, settle: Callable[[asyncio.Future[None]], None], version: int | None) -> None:
        with self._lock:
            ready = [f for f, v in self._waiting.items() if version is None or v <= version]
            for future in ready:
                del self._waiting[future]
        for future in ready:
            with contextlib.suppress(RuntimeError):  # that loop is closed
                future.get_loop().call_soon_threadsafe(_settle, future, settle)


def _settle(future: asyncio.Future[None], settle: Callable[[asyncio.Future[None]], None]) -> None:
    if not future.done():
        settle(future)
