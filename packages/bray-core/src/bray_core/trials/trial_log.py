"""The log of a trial, `bray.log`: records of all its processes, each with its process.

2026-01-31 12:00:00,000 WARNING actor/0 bray_actor.gamecores.fleet: gamecore 3 ended with code 1
"""

from __future__ import annotations

import logging
from pathlib import Path

from bray_core.metrics.hub_wire import Line
from bray_core.process.log_handlers import attach_handler, detach_handler

_FORMAT = "%(asctime)s %(levelname)s %(component)s/%(rank)s %(name)s: %(message)s"


class TrialLog(logging.FileHandler):
    """Writes the log records of this process, and those that other processes send."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8")
        self.setFormatter(logging.Formatter(_FORMAT, defaults={"component": "driver", "rank": 0}))
        self.setLevel(logging.INFO)
        attach_handler(self)

    def write_line(self, line: Line, component: str, rank: int) -> None:
        """Write a record of another process."""
        record = logging.LogRecord(line.logger, line.level, "", 0, line.text, None, None)
        record.created, record.msecs = line.time_s, line.time_s % 1 * 1000
        record.component, record.rank = component, rank
        self.handle(record)

    def close(self) -> None:
        """Take no more records, and close the file."""
        detach_handler(self)
        super().close()
