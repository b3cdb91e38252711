"""The JSON lines sink: one object a window, with every x-axis, and the values that are new.

{"frames", "steps", "policy_version", "seconds", "wall_time_s", "values": {name: value}}
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bray_core.axes import AXES, Axes, Axis
from bray_core.choice import check_choice
from bray_core.experiment import launches

FILE = "metrics.jsonl"
_TAIL_BYTES = 256 * 1024


class JsonLinesSink:
    """Appends to a file, a line at a time, so that a crash loses at most the last line."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def write(self, axes: Axes, values: Mapping[str, float]) -> None:
        """Append one line; values that are not finite become null."""
        finite = {name: v if math.isfinite(v) else None for name, v in values.items()}
        self._file.write(json.dumps({**asdict(axes), "values": finite}) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def curve(trial: Path, name: str, axis: Axis = "frames") -> tuple[list[float], list[float]]:
    """Return a metric over all launches of a trial, to be laid over another trial's.

    Args:
        trial: its folder.
        name: of the metric, with its labels.
        axis: what x is.

    Returns:
        x and y, each as long as there are finite values.

    Raises:
        ConfigError: there is no such axis.
    """
    check_choice("axis", axis, AXES)
    xs, ys = [], []
    for row in _rows(trial):
        value = row.get("values", {}).get(name)
        if value is not None and axis in row:
            xs.append(float(row[axis]))
            ys.append(float(value))
    return xs, ys


def last_axes(trial: Path) -> Axes:
    """Return how far a trial was when its last launch ended."""
    for launch in reversed(launches(trial)):
        if rows := tail(launch):
            return Axes(**{axis: rows[-1][axis] for axis in AXES if axis in rows[-1]})
    return Axes()


def tail(launch: Path) -> list[dict[str, Any]]:
    """Return the last lines of a launch, whose file may be long; all if the last one is."""
    try:
        with (launch / FILE).open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - _TAIL_BYTES))
            found = list(_parsed(file))
            file.seek(0)
            return found or list(_parsed(file))
    except FileNotFoundError:
        return []


def _rows(trial: Path) -> Iterator[dict[str, Any]]:
    for launch in launches(trial):
        with contextlib.suppress(FileNotFoundError), (launch / FILE).open("rb") as file:
            yield from _parsed(file)


def _parsed(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:  # cut off, by a crash or by where reading began
            continue
        if isinstance(row, dict):
            yield row
