"""The JSON lines sink: one object a window, with every x-axis, and the values that are new.

{"frames", "steps", "policy_version", "seconds", "wall_time_s", "values": {name: value}}
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bray_core.axes import AXES, Axes, Axis
from bray_core.errors import ConfigError

FILE = "metrics.jsonl"


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
    if axis not in AXES:
        raise ConfigError(f"axis: expected one of {', '.join(AXES)}, got {axis!r}")
    xs, ys = [], []
    for row in _rows(trial):
        value = row.get("values", {}).get(name)
        if value is not None and axis in row:
            xs.append(float(row[axis]))
            ys.append(float(value))
    return xs, ys


def last_axes(trial: Path) -> Axes:
    """Return how far a trial was when its last launch ended."""
    last: dict[str, Any] = {}
    for row in _rows(trial):
        last = row
    return Axes(**{axis: last[axis] for axis in AXES if axis in last})


def _rows(trial: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(trial.glob(f"launches/*/{FILE}")):
        with path.open() as file:
            for line in file:
                try:
                    row = json.loads(line)
                except json.JSONDecodeError:  # cut off by a crash
                    continue
                if isinstance(row, dict):
                    yield row
