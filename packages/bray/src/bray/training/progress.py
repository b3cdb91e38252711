"""The live view of a run: a table that refreshes in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import IO, Protocol

ROWS = (
    ("return", "mean return, last 100 episodes", "{:.1f}"),
    ("frames", "frames (environment steps)", "{:,.0f}"),
    ("frames_per_s", "frames/s", "{:,.0f}"),
    ("loss", "loss", "{:.4f}"),
    ("version", "policy version", "{:.0f}"),
    ("lag", "policy lag (versions)", "{:.2f}"),
    ("elapsed_s", "elapsed (s)", "{:.0f}"),
)
"""Key of a value, its words in the table, its format."""

_LINE_INTERVAL_S = 2.0


class Display(Protocol):
    """Where the figures of a run are shown while it runs."""

    def __enter__(self) -> Display:
        """Start showing."""
        ...

    def __exit__(self, *exc_info: object) -> None:
        """Stop showing; what was shown last stays."""
        ...

    def update(self, values: Mapping[str, float], *, now: bool = False) -> None:
        """Show new figures, keys as in `ROWS`; `now` also if some were shown a moment ago."""
        ...

    def say(self, text: str) -> None:
        """Show a lasting line."""
        ...


def display(title: str, stream: IO[str] | None = None) -> Display:
    """Return a table where `stream` (stdout) is a terminal, else plain lines."""
    stream = stream or sys.stdout
    return _Table(title) if stream.isatty() else _Lines(title, stream)


class _Lines:
    """One line every two seconds: for files, pipes and CI."""

    def __init__(self, title: str, stream: IO[str]) -> None:
        self._title = title
        self._stream = stream
        self._next = 0.0

    def __enter__(self) -> _Lines:
        self.say(self._title)
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, values: Mapping[str, float], *, now: bool = False) -> None:
        if not now and time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _LINE_INTERVAL_S
        parts = [f"{key} {fmt.format(values[key])}" for key, _, fmt in ROWS if key in values]
        self.say("  ".join(parts))

    def say(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()


class _Table:
    """A `rich` table, redrawn in place."""

    def __init__(self, title: str) -> None:
        from rich.console import Console
        from rich.live import Live

        self._title = title
        self._console = Console()
        self._live = Live(console=self._console, auto_refresh=False, transient=False)

    def __enter__(self) -> _Table:
        self._live.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._live.stop()

    def update(self, values: Mapping[str, float], *, now: bool = False) -> None:
        from rich.table import Table

        table = Table(title=self._title, title_justify="left", show_header=False)
        for key, words, fmt in ROWS:
            if key in values:
                table.add_row(words, fmt.format(values[key]))
        self._live.update(table, refresh=True)

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)
