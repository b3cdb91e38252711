"""A thread that runs one function; its error reaches the caller who waits for its end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)


class BackgroundThread:
    """Runs a function in a thread, at most one at a time.

    Args:
        name: Name of the thread, also in the log.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        # Waited for instead of the thread: CPython 3.11's `join` takes a thread for ended when
        # Ctrl-C interrupts it.
        self._idle = threading.Event()
        self._idle.set()
        self._error: Exception | None = None
        self._error_was_raised = False

    def start(self, target: Callable[[], None]) -> None:
        """Start the thread; without effect while it runs."""
        if not self._idle.is_set():
            return
        self._error = None
        self._error_was_raised = False
        self._idle.clear()
        threading.Thread(target=self._run, args=(target,), name=self._name, daemon=True).start()

    def _run(self, target: Callable[[], None]) -> None:
        try:
            target()
        except Exception as error:
            logger.exception("%s: stopped by an error", self._name)
            self._error = error
        finally:
            self._idle.set()

    def is_idle(self, timeout_s: float = 0.0) -> bool:
        """Wait for the thread's end, whatever it ends with; True if there never was one."""
        return self._idle.wait(timeout_s)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the thread's end; return whether it has ended, or raise its error."""
        if not self.is_idle(timeout_s):
            return False
        if self._error is not None:
            self._error_was_raised = True
            raise self._error
        return True

    def raise_unseen(self) -> None:
        """Raise the thread's error if nobody has been told of it."""
        if self._error is not None and not self._error_was_raised:
            self._error_was_raised = True
            raise self._error
