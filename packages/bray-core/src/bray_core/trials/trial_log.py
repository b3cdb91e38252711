"""The log of a trial, `bray.log`: records of all its processes, each with its process.

2026-01-31 12:00:00,000 WARNING actor/0 bray_actor.gamecores.fleet: gamecore 3 ended with code 1
"""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from pathlib import Path

from bray_core.metrics.hub_wire import Line
from bray_core.process.log_handlers import attach_handler, detach_handler, has_other_handlers

_FORMAT = "%(asctime)s %(levelname)s %(component)s/%(rank)s %(name)s: %(message)s"
_MAX_SHOWN = 50
"""Most kinds of warnings that are shown on standard error."""


class TrialLog(logging.FileHandler):
    """Writes the log records of this process, and those that other processes send.

    Warnings are shown on standard error, too, as Python does where a program has not set up
    logging: the first line of the first one of each kind, numbers aside.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8")
        self._shown: set[tuple[str, str]] = set()
        self.setFormatter(logging.Formatter(_FORMAT, defaults={"component": "driver", "rank": 0}))
        self.setLevel(logging.INFO)
        attach_handler(self)

    def write_line(self, line: Line, component: str, rank: int) -> None:
        """Write a record of another process."""
        record = logging.LogRecord(line.logger, line.level, "", 0, line.text, None, None)
        record.created, record.msecs = line.time_s, line.time_s % 1 * 1000
        record.component, record.rank = component, rank
        self.handle(record)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, and show it if it is the first warning of its kind."""
        super().emit(record)
        if record.levelno >= logging.WARNING and not has_other_handlers():
            self._show(record)

    def _show(self, record: logging.LogRecord) -> None:
        line = record.getMessage().partition("\n")[0]
        kind = (record.name, re.sub(r"\d+", "", line))
        if kind in self._shown or len(self._shown) == _MAX_SHOWN:
            return
        self._shown.add(kind)
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            sys.stderr.write(f"{record.levelname.lower()}: {line}\n")

    def close(self) -> None:
        """Take no more records, and close the file."""
        detach_handler(self)
        super().close()
