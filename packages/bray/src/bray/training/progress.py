"""The live view of a run: a table that refreshes in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any, Protocol

from bray.goal import Goal

_LINE_INTERVAL_S = 2.0
_BAR_WIDTH = 24


@dataclass(frozen=True, slots=True)
class DisplayRow:
    """One figure of a run, and how it is shown."""

    key: str
    words: str
    form: str = "{:,.0f}"
    target: float | None = None
    """What it is to reach, if anything."""

    @property
    def is_time(self) -> bool:
        """Whether it is a number of seconds."""
        return self.key.endswith("_s") and not self.key.endswith("_per_s")

    @property
    def name(self) -> str:
        """What a plain line calls it."""
        return self.key.removesuffix("_s") if self.is_time else self.key

    def text(self, value: float) -> str:
        """Return the figure, beside what it is to reach."""
        if self.is_time:
            return f"{duration(value)} at most" if self.key == "left_s" else duration(value)
        shown = self.form.format(value)
        return shown if self.target is None else f"{shown} of {self.form.format(self.target)}"

    def share(self, value: float) -> float | None:
        """Return how much of the way is gone, 0 to 1; None where that means nothing."""
        if self.target is None or self.target <= 0:
            return None
        return min(1.0, max(0.0, value / self.target))


def rows(goal: Goal | None = None, unit: str = "frames") -> tuple[DisplayRow, ...]:
    """Return the figures of a run in the order in which they are shown.

    Args:
        goal: what is to be reached, and the budget; None shows the figures alone.
        unit: what frames are in this run, in words.
    """
    wanted = None if goal is None else goal.episode_return  # a win rate is no training return
    budget = None if goal is None else goal.max_frames
    words = "frames (environment steps)" if unit == "frames" else unit
    return (
        DisplayRow("return", "mean return, last 100 episodes", "{:.1f}", wanted),
        DisplayRow("frames", words, target=budget),
        DisplayRow("frames_per_s", f"{unit}/s"),
        DisplayRow("loss", "loss", "{:.4f}"),
        DisplayRow("version", "policy version", "{:.0f}"),
        DisplayRow("lag", "policy lag (versions)", "{:.2f}"),
        DisplayRow("elapsed_s", "elapsed"),
        DisplayRow("left_s", "left"),
    )


def duration(seconds: float) -> str:
    """Return seconds in words, such as `2 min 5 s`."""
    whole = round(seconds)
    hours, minutes = whole // 3600, whole % 3600 // 60
    if hours:
        return f"{hours:,} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"


class Display(Protocol):
    """Where the figures of a run are shown while it runs."""

    def __enter__(self) -> Display:
        """Start showing."""
        ...

    def __exit__(self, *exc_info: object) -> None:
        """Stop showing; what was shown last stays."""
        ...

    def update(self, values: Mapping[str, float], *, now: bool = False) -> None:
        """Show new figures by the keys of `rows`; `now` also if some were shown a moment ago."""
        ...

    def say(self, text: str) -> None:
        """Show a lasting line."""
        ...


def display(
    title: str, goal: Goal | None = None, unit: str = "frames", stream: IO[str] | None = None
) -> Display:
    """Return a table where `stream` (stdout) is a terminal, else plain lines.

    Args:
        title: text shown above the figures.
        goal: goal of the run, see `rows`.
        unit: what is counted, see `rows`.
        stream: where to write.
    """
    stream = stream or sys.stdout
    shown = rows(goal, unit)
    return _Table(title, shown, stream) if stream.isatty() else _Lines(title, shown, stream)


class _Lines:
    """One line every two seconds: for files, pipes and CI."""

    def __init__(self, title: str, shown: tuple[DisplayRow, ...], stream: IO[str]) -> None:
        self._title = title
        self._rows = shown
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
        shown = [row for row in self._rows if row.key in values]
        self.say("  ".join(f"{row.name} {row.text(values[row.key])}" for row in shown))

    def say(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()


class _Table:
    """A `rich` table, redrawn in place."""

    def __init__(self, title: str, shown: tuple[DisplayRow, ...], stream: IO[str]) -> None:
        from rich.console import Console
        from rich.live import Live

        self._title = title
        self._rows = shown
        self._console = Console(file=stream)
        self._live = Live(console=self._console, auto_refresh=False, transient=False)

    def __enter__(self) -> _Table:
        self._live.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._live.stop()

    def update(self, values: Mapping[str, float], *, now: bool = False) -> None:
        from rich.table import Table

        table = Table(title=self._title, title_justify="left", show_header=False)
        for row in self._rows:
            if row.key in values:
                value = values[row.key]
                table.add_row(row.words, row.text(value), _bar(row.share(value)))
        self._live.update(table, refresh=True)

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)


def _bar(share: float | None) -> Any:
    from rich.progress_bar import ProgressBar

    return "" if share is None else ProgressBar(total=1.0, completed=share, width=_BAR_WIDTH)
