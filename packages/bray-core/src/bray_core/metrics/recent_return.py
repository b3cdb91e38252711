"""The return of a trial as it plays now: a mean over episodes, not over the last second."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bray_core.files.regular_file import Opener, open_regular
from bray_core.files.trial_folders import launches
from bray_core.metrics.json_lines import Row, newest_rows

EPISODES = 100
"""Number of episodes in the mean, as in the live view of a run."""
_RETURN, _ENDED = "actor/episode_return", "actor/episodes"
_MAX_ROWS = 100_000
"""Number of windows that are looked through backwards: those of a day."""


def recent_return(trial: Path, opener: Opener = open_regular) -> float | None:
    """Return the mean return of a trial's last `EPISODES` training episodes; None without any.

    A window of the metrics holds the mean of the episodes that ended in it; `actor/episodes` tells
    how many these were. A window of a trial that does not record it counts as one episode.

    Args:
        trial: Folder of the trial; episodes of all launches count.
        opener: Function that opens files of metrics.

    Raises:
        OSError: A file of metrics cannot be read.
    """
    total, left = 0.0, float(EPISODES)
    for mean, ended in _windows(trial, opener):
        weight = min(left, ended)
        total += weight * mean
        left -= weight
        if left <= 0:
            break
    seen = EPISODES - left
    return total / seen if seen else None


def _windows(trial: Path, opener: Opener) -> Iterator[tuple[float, float]]:
    """Yield mean return and number of episodes of each window, the newest first."""
    num_rows = 0
    for launch in reversed(launches(trial)):
        later: Row | None = None
        for row in newest_rows(launch, opener):
            if later is not None and row.values.get(_ENDED) is not None:
                yield _window(later, row.values[_ENDED] or 0.0)
                later = None
            if row.values.get(_RETURN) is not None:
                if later is not None:  # who counts no episodes says nothing between
                    yield _window(later, None)
                later = row
            num_rows += 1
            if num_rows >= _MAX_ROWS:
                return
        if later is not None:
            yield _window(later, 0.0)


def _window(row: Row, before: float | None) -> tuple[float, float]:
    """Return a window's mean and its number of episodes, `before` of which had ended before it."""
    mean, ended = row.values[_RETURN] or 0.0, row.values.get(_ENDED)
    if ended is None or before is None:
        return mean, 1.0
    return mean, max(1.0, ended - before)
