"""How often a worker may die before its run ends: a crash loop is a fault that stays."""

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
"""Lines that Ray itself writes into what a worker says."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RestartLimit:
    """A worker that dies more than `max_restarts` times within `window_s` is not started again.

    One kill a minute, as of chaos tests and preempted machines, is within the default for ever; a
    worker that dies of the same fault a few seconds after each start is not.
    """

    max_restarts: NonNegativeInt = 10
    """0: a worker that dies once ends the run. Too many, and a run that is broken takes long to
    say so; too few, and it ends for an accident."""
    window_s: Annotated[float, Range(above=0, allow_infinity=True)] = 300.0
    """Seconds in which the deaths are counted; those before are forgotten."""

    def __post_init__(self) -> None:
        check_fields(self)

    def recent(self, deaths: Sequence[float], now: float) -> list[float]:
        """Return the times of those deaths that still count."""
        return [at for at in deaths if now - self.window_s <= at <= now]

    def is_exceeded(self, deaths: Sequence[float], now: float) -> bool:
        """Whether so many of these times of deaths still count that it is a crash loop."""
        return len(self.recent(deaths, now)) > self.max_restarts


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerHistory:
    """What a worker that is started again learns of the processes that it had before."""

    deaths: tuple[float, ...] = ()
    """Seconds since 1970."""
    stderr: str = ""
    """The file that the last process wrote its errors to."""

    def died(self, limit: RestartLimit, now: float | None = None) -> WorkerHistory:
        """Return the history with one more death, without those that no longer count."""
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
        """Return it as bytes."""
        return json.dumps({"deaths": self.deaths, "stderr": self.stderr}).encode()

    @classmethod
    def decode(cls, data: bytes | None) -> WorkerHistory:
        """Return what `encode` made; an empty one of None."""
        if data is None:
            return cls()
        read = json.loads(data)
        return cls(deaths=tuple(read["deaths"]), stderr=read["stderr"])
