"""A thread for a sink: a slow one gets fewer points, a failing one is left out, the run goes on."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

from bray_core.metrics.axes import Axes
from bray_core.metrics.run_sinks import RunSink, SinkEnding

MAX_WAITING = 60
"""Windows that wait for a slow sink; more are merged, and the newest value of a metric stays."""

logger = logging.getLogger(__name__)


class SinkThread:
    """Opens a sink, writes to it and closes it, all in one thread of its own.

    Args:
        name: Name of the sink, for the log.
        make: Opens the sink.
        every_s: Least number of seconds between two writes; what comes between is merged.
    """

    def __init__(self, name: str, make: Callable[[], RunSink], *, every_s: float = 0.0) -> None:
        self._name = name
        self._make = make
        self._every_s = every_s
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Axes, dict[str, float]]] = deque()
        self._ending: SinkEnding | None = None
        self._has_failed = False
        # A daemon: a server that never answers does not keep the program from ending.
        self._thread = threading.Thread(target=self._run, name=f"bray-sink-{name}", daemon=True)
        self._thread.start()

    def write(self, axes: Axes, values: Mapping[str, float]) -> None:
        """Hand over the newest values; never waits for the sink."""
        with self._changed:
            if self._has_failed:
                return
            if len(self._waiting) < MAX_WAITING:
                self._waiting.append((axes, dict(values)))
            else:
                self._waiting[-1] = (axes, {**self._waiting[-1][1], **values})
            self._changed.notify()

    def end(self, ending: SinkEnding) -> None:
        """Tell the sink how the launch ended; it writes what waits, and closes."""
        with self._changed:
            self._ending = ending
            self._changed.notify()

    def join(self, timeout_s: float) -> bool:
        """Wait until the sink is closed; return whether it is."""
        self._thread.join(max(0.0, timeout_s))
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            sink = self._make()
        except Exception:
            logger.exception("sink %s cannot be opened: nothing is written to it", self._name)
            self._forget()
            return
        try:
            while True:
                windows, ending = self._next()
                for axes, values in windows:
                    sink.write(axes, values)
                if ending is not None:
                    sink.close(ending)
                    return
        except Exception:
            logger.exception("sink %s failed: this launch writes no more to it", self._name)
            self._forget()

    def _forget(self) -> None:
        with self._changed:
            self._has_failed = True
            self._waiting.clear()

    def _next(self) -> tuple[list[tuple[Axes, dict[str, float]]], SinkEnding | None]:
        """Wait for something to write; return it, and how the launch ended once it has."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ending)
            if self._every_s and self._ending is None:
                due = time.monotonic() + self._every_s
                while self._ending is None and (left := due - time.monotonic()) > 0:
                    self._changed.wait(left)
            windows = list(self._waiting)
            self._waiting.clear()
            if self._every_s and windows:
                windows = [(windows[-1][0], {k: v for _, one in windows for k, v in one.items()})]
            return windows, self._ending
