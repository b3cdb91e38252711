"""Work of other threads that the one that generates does between two steps."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Errand:
    """Something to do between two steps.

    Args:
        do: What it is.
    """

    def __init__(self, do: Callable[[], None]) -> None:
        self._do = do
        self.done = threading.Event()
        """Set when it was done."""
        self.error: Exception | None = None
        """What it raised."""

    def run(self) -> None:
        """Do it."""
        try:
            self._do()
        except Exception as error:  # noqa: BLE001  the one who asked raises it
            self.error = error
        self.done.set()
