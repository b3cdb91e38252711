"""A log that clients cannot fill: its lines are limited in number and rate."""

from __future__ import annotations

import logging
import time
import traceback

from bray_core.files.escaping import escape_unprintable

_MOST_LINES = 20
_LINES_PER_S = 1.0
_STACK_LINES = 40


class BoundedLog:
    """Writes errors to a logger: the first ones, then one a second and how many were left out.

    Unprintable characters are escaped, so that no request can forge a line or move a
    terminal's cursor.

    Args:
        logger: Logger to write to.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._room = float(_MOST_LINES)
        self._looked_s = time.monotonic()
        self._left_out = 0

    def error(self, message: str, error: BaseException | None = None) -> None:
        """Write a line, and the stack of an error; or leave it out where there were too many."""
        now = time.monotonic()
        self._room = min(_MOST_LINES, self._room + (now - self._looked_s) * _LINES_PER_S)
        self._looked_s = now
        if self._room < 1:
            self._left_out += 1
            return
        self._room -= 1
        self.flush()
        stack = "" if error is None else _stack(error)
        self._logger.error("%s%s", escape_unprintable(message), stack)

    def flush(self) -> None:
        """Write how many lines were left out, if any. Call it from time to time."""
        if self._left_out:
            self._logger.error("%d more errors of requests were not logged", self._left_out)
            self._left_out = 0


def _stack(error: BaseException) -> str:
    lines = "".join(traceback.format_exception(error)).splitlines()
    return "".join(f"\n  {escape_unprintable(line)}" for line in lines[-_STACK_LINES:])
