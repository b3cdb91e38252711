"""Metrics as JSON lines: one object per window, with every x-axis, and the values that are new.

{"frames", "steps", "policy_version", "seconds", "wall_time_s", "values": {name: value},
 "counts": [name]}

`counts` names the values that add up over the launch, once, in the line where each is first met.
A line that a crash cut short, or that another program wrote, is left out when a file is read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from bray_core.files.regular_file import Opener, open_regular
from bray_core.files.trial_folders import launches
from bray_core.metrics.axes import AXES, Axes, Axis
from bray_core.settings.choice import check_choice

FILE = "metrics.jsonl"
COUNTS = frozenset(
    {
        "actor/environment_errors", "actor/episodes", "actor/steps", "actor/steps_lost",
        "actor/matches", "actor/matches_dropped", "actor/matches_voided", "actor/parts_dropped",
        "actor/recordings_lost", "actor/rollouts_lost", "actor/workers_lost",
        "buffer/dropped_segments",
        "buffer/lost_segments", "buffer/failures", "buffer/stale_segments",
        "buffer/skipped_samples", "buffer/lost_priorities", "buffer/stale_priorities",
        "gamecore/restarts", "metrics/dropped_names", "metrics/dropped_lines",
        "model/version_loads", "trainer/frames", "trainer/skipped_steps", "trainer/restarts",
        "trainer/unused_replays", "worker/restarts",
        "chat/abandoned", "chat/completion_tokens", "chat/episodes", "chat/prompt_tokens",
        "chat/refused", "chat/requests", "chat/retokenised", "chat/retries",
        "chat/unparsed_tool_calls", "text/dropped_sessions", "text/failed_conversations",
        "text/failed_rewards", "text/lost_groups", "text/new_segments",
        "text/sampled_tokens", "text/samples",
        "text/sessions_without_reward", "text/stale_samples", "text/unparsed_calls",
    }
)  # fmt: skip
"""Counts that bray records. Older files do not say in `counts` which of their values are counts."""
_BLOCK_BYTES = 256 * 1024
_MAX_LINE_BYTES = 4 * 1024 * 1024
"""Longest line that is read; a window of 4,096 metrics takes a tenth of it."""


class Row(msgspec.Struct):
    """One line of the file. A line with a value that is not finite, or no number, is left out."""

    values: dict[str, float | None]
    frames: float
    steps: float = 0.0
    policy_version: float = 0.0
    seconds: float = 0.0
    wall_time_s: float = 0.0
    counts: list[str] = []


_DECODER = msgspec.json.Decoder(Row)


class JsonLinesSink:
    """Appends to a file, a line at a time, so that a crash loses at most the last line."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)
        self._counts: set[str] = set()

    def write(self, axes: Axes, values: Mapping[str, float], counts: Collection[str] = ()) -> None:
        """Append one line; values that are not finite become null.

        Args:
            axes: How far the trial is.
            values: Value of each metric by its name.
            counts: Names of the values that add up over the launch.
        """
        finite = {name: v if math.isfinite(v) else None for name, v in values.items()}
        line: dict[str, Any] = {**asdict(axes), "values": finite}
        if new := sorted(set(counts) - self._counts):
            self._counts.update(new)
            line["counts"] = new
        self._file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def curve(trial: Path, name: str, axis: Axis = "frames") -> tuple[list[float], list[float]]:
    """Return the curve of a metric over all launches of a trial, for plots of several trials.

    A count goes on where the launch before ended, as the axes do.

    Args:
        trial: Folder of the trial.
        name: Name of the metric, with its labels.
        axis: Name of the x-axis.

    Returns:
        x and y `[N]` of the windows in which the metric has a finite value.

    Raises:
        ConfigError: There is no such axis.
    """
    check_choice("axis", axis, AXES)
    xs: list[float] = []
    ys: list[float] = []
    counted = 0.0
    for launch in launches(trial):
        before, is_count = counted, is_known_count(name)
        for row in _rows(launch):
            is_count |= name in row.counts
            value = row.values.get(name)
            if value is not None:
                counted = before + value if is_count else 0.0
                xs.append(getattr(row, axis))
                ys.append(counted if is_count else value)
    return xs, ys


def is_known_count(name: str) -> bool:
    """Return whether a metric, with or without labels, is one of `COUNTS`."""
    return name.partition("{")[0] in COUNTS


def last_axes(trial: Path) -> Axes:
    """Return how far a trial was when its last launch ended."""
    for launch in reversed(launches(trial)):
        for row in newest_rows(launch):
            return Axes(
                frames=int(row.frames),
                steps=int(row.steps),
                policy_version=int(row.policy_version),
                seconds=row.seconds,
                wall_time_s=row.wall_time_s,
            )
    return Axes()


def tail(launch: Path) -> list[Row]:
    """Return the last lines of a launch, the newest last, without reading its whole file."""
    try:
        with open_regular(launch / FILE) as file:
            end = _size(file)
            file.seek(max(0, end - _BLOCK_BYTES))
            if found := rows(file.read(_BLOCK_BYTES)):
                return found
    except (FileNotFoundError, NotADirectoryError):
        return []
    newest = next(newest_rows(launch), None)
    return [] if newest is None else [newest]


def newest_rows(launch: Path, opener: Opener = open_regular) -> Iterator[Row]:
    """Yield the lines of a launch from the newest backwards; no more is read than is asked for.

    Args:
        launch: Folder of the launch; one without metrics has no lines.
        opener: Function that opens the file.

    Raises:
        OSError: The file cannot be read.
    """
    try:
        file = opener(launch / FILE)
    except (FileNotFoundError, NotADirectoryError):
        return
    with file:
        end, left = _size(file), b""
        while end > 0:
            step = min(_BLOCK_BYTES, end)
            end -= step
            file.seek(end)
            first, newline, rest = (file.read(step) + left).partition(b"\n")
            if end == 0:
                first, newline, rest = b"", b"\n", first + newline + rest
            if newline:
                yield from reversed(rows(rest))
                left = first
            elif len(first) <= _MAX_LINE_BYTES:
                left = first
            else:
                left = b""  # no line of ours: what begins it is met as one that was cut short


def rows(data: bytes) -> list[Row]:
    """Return the rows in bytes that are whole lines."""
    return list(parsed(data.split(b"\n")))


def parsed(lines: Iterable[bytes]) -> Iterator[Row]:
    """Yield the rows in lines, without lines that are no rows."""
    for line in lines:
        try:
            yield _DECODER.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue


def whole_lines(file: BinaryIO, start: int) -> Iterator[tuple[bytes, int]]:
    """Yield blocks of whole lines of a file that may be growing, each with the byte it ends at.

    Args:
        file: File to read.
        start: Byte at which a line begins.
    """
    file.seek(start)
    left = b""
    while data := file.read(_BLOCK_BYTES):
        whole, newline, left = (left + data).rpartition(b"\n")
        if newline:
            start += len(whole) + 1
            yield whole, start
        elif len(left) > _MAX_LINE_BYTES:  # no line of ours: what follows is as good as its end
            start += len(left)
            left = b""
            yield b"", start


def _rows(launch: Path) -> Iterator[Row]:
    try:
        with open_regular(launch / FILE) as file:
            end = 0
            for block, end in whole_lines(file, 0):  # noqa: B007
                yield from parsed(block.split(b"\n"))
            file.seek(end)  # a last line without its end
            yield from parsed([file.read(_MAX_LINE_BYTES)])
    except (FileNotFoundError, NotADirectoryError):
        return


def _size(file: BinaryIO) -> int:
    return file.seek(0, 2)
