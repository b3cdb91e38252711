"""How often a worker may die before its run ends, so that a crash loop does not go on for ever."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from bray_core.settings.ranges import NonNegativeInt, Range, check_fields

_MAX_BYTES = 2**16
_MAX_CHARS = 500
_MAGIC = (":job_id:", ":actor_name:", ":task_name:")
"""Beginnings of lines that Ray itself writes to a worker's standard error."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RestartLimit:
    """A worker that dies more than `max_restarts` times within `window_s` is not started again.

    The default allows one kill a minute for ever, as with preempted machines. It does not allow a
    worker that dies of the same fault a few seconds after each start.
    """

    max_restarts: NonNegativeInt = 10
    """Number of deaths of one worker that the run survives within `window_s`. Too many, and a
    broken run takes long to end; too few, and an accident ends it. Usually 3 to 20."""
    window_s: Annotated[float, Range(above=0, allow_infinity=True)] = 300.0
    """Seconds in which deaths are counted; earlier ones are forgotten."""

    def __post_init__(self) -> None:
        check_fields(self)

    def recent(self, deaths: Sequence[float], now: float) -> list[float]:
        """Return the times of the deaths within the last `window_s` seconds."""
        return [at for at in deaths if now - self.window_s <= at <= now]

    def is_exceeded(self, deaths: Sequence[float], now: float) -> bool:
        """Return whether more than `max_restarts` of these deaths still count."""
        return len(self.recent(deaths, now)) > self.max_restarts


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerHistory:
    """Deaths of a worker's earlier processes, which a restarted worker reads."""

    deaths: tuple[float, ...] = ()
    """Times of the deaths, in seconds since 1970."""
    stderr: str = ""
    """Path of the file with the last process's standard error."""

    def died(self, limit: RestartLimit, now: float | None = None) -> WorkerHistory:
        """Return the history with one more death, without deaths that no longer count."""
        now = time.time() if now is None else now
        return WorkerHistory(deaths=(*limit.recent(self.deaths, now), now), stderr=self.stderr)

    def last_words(self) -> str:
        """Return the end of what the last process wrote to standard error, on one line."""
        try:
            with Path(self.stderr).open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _MAX_BYTES))
                text = file.read(_MAX_BYTES).decode(errors="replace")
        except OSError:
            return "what it said is on another machine, or gone"
        lines = [line.strip() for line in text.splitlines() if not line.startswith(_MAGIC)]
        words = " | ".join(filter(None, lines))[-_MAX_CHARS:]
        return "".join(c if c.isprintable() else "?" for c in words) or "it said nothing"

    def encode(self) -> bytes:
        """Return the history as bytes."""
        return json.dumps({"deaths": self.deaths, "stderr": self.stderr}).encode()

    @classmethod
    def decode(cls, data: bytes | None) -> WorkerHistory:
        """Read what `encode` made; None gives an empty history."""
        if data is None:
            return cls()
        read = json.loads(data)
        return cls(deaths=tuple(read["deaths"]), stderr=read["stderr"])
