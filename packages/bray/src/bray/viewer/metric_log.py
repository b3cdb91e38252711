"""A trial's `metrics.jsonl` files as columns, read on as they grow. Alone in knowing their lines.

A line is `{"frames", "steps", "policy_version", "seconds", "wall_time_s", "values"}`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from bray_core.experiment import launches
from bray_core.json_lines import FILE

Floats = npt.NDArray[np.float64]

AXES = ("frames", "steps", "seconds", "policy_version")
"""What x may be: environment steps, optimiser steps, seconds that launches took, version."""
TAIL_BYTES = 256 * 1024
_BLOCK_BYTES = 8 * 1024 * 1024


class Row(msgspec.Struct):
    """One line."""

    values: dict[str, float | None]
    wall_time_s: float
    frames: float
    steps: float
    policy_version: float
    seconds: float

    def axes(self) -> tuple[float, ...]:
        """Return x by each of `AXES`."""
        return self.frames, self.steps, self.seconds, self.policy_version


_DECODER = msgspec.json.Decoder(Row)


def rows(data: bytes) -> list[Row]:
    """Return what whole lines hold; one that a crash cut short is left out."""
    found = []
    for line in data.splitlines():
        try:
            found.append(_DECODER.decode(line))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
    return found


def tail(trial: Path) -> list[Row]:
    """Return the last lines of the newest launch that wrote any."""
    for launch in reversed(launches(trial)):
        try:
            with (launch / FILE).open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(0, end - TAIL_BYTES))
                found = rows(file.read())
        except OSError:
            continue
        if found:
            return found
    return []


class MetricLog:
    """The metrics of a trial over all its launches. Thread-safe.

    Args:
        trial: its folder.
    """

    def __init__(self, trial: Path) -> None:
        self._trial = trial
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._read: dict[str, int] = {}
        """Bytes read of each launch's file."""
        self._blocks: list[_Block] = []

    @property
    def num_bytes(self) -> int:
        """Memory that it takes, about."""
        return sum(block.num_bytes for block in self._blocks)

    def curve(self, metric: str, axis: str) -> tuple[Floats, Floats]:
        """Return x and y of a metric, in the order in which they were written; `[N]` each."""
        with self._lock:
            self._refresh()
            found = [block.curve(metric, axis) for block in self._blocks]
        xs, ys = [x for x, _ in found], [y for _, y in found]
        x, y = (np.concatenate(parts) if parts else np.empty(0) for parts in (xs, ys))
        known = np.isfinite(x) & np.isfinite(y)
        return x[known], y[known]

    def _refresh(self) -> None:
        grown, every = [], launches(self._trial)
        if self._was_replaced(every):
            self._forget()
        for launch in every:
            grown += self._new_rows(launch)
        if grown:
            self._blocks.append(_Block(grown))
        if len(self._blocks) > 64:  # of a run that is watched: a few lines each
            self._blocks = [_Block.joined(self._blocks)]

    def _was_replaced(self, every: list[Path]) -> bool:
        """Return whether another trial has taken this name: a file that was read is gone."""
        sizes = {launch.name: _size(launch / FILE) for launch in every}
        return any(sizes.get(name, -1) < read for name, read in self._read.items())

    def _new_rows(self, launch: Path) -> list[Row]:
        name = launch.name
        found: list[Row] = []
        try:
            with (launch / FILE).open("rb") as file:
                file.seek(self._read.get(name, 0))
                left = b""
                while data := file.read(_BLOCK_BYTES):
                    whole, newline, left = (left + data).rpartition(b"\n")
                    self._read[name] = self._read.get(name, 0) + len(whole) + len(newline)
                    found += rows(whole)
        except FileNotFoundError:
            pass
        return found


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return -1


class _Block:
    """Rows that were read together, a column a metric; NaN where a row has no value."""

    def __init__(self, found: Sequence[Row]) -> None:
        axes = np.array([row.axes() for row in found], np.float64).reshape(-1, len(AXES))
        self._axes: dict[str, Floats] = dict(zip(AXES, axes.T, strict=True))
        values = [row.values for row in found]
        self._columns = {
            name: np.array([row.get(name) for row in values], np.float64)  # None becomes NaN
            for name in set().union(*values)
        }

    @property
    def num_bytes(self) -> int:
        return 8 * len(self._axes["frames"]) * (len(AXES) + len(self._columns))

    def curve(self, metric: str, axis: str) -> tuple[Floats, Floats]:
        return self._axes[axis], self._column(metric)

    def _column(self, metric: str) -> Floats:
        column = self._columns.get(metric)
        return np.full(len(self._axes["frames"]), np.nan) if column is None else column

    @classmethod
    def joined(cls, blocks: Sequence[_Block]) -> _Block:
        made = cls([])
        made._axes = {axis: np.concatenate([b._axes[axis] for b in blocks]) for axis in AXES}
        names = {name for block in blocks for name in block._columns}
        made._columns = {n: np.concatenate([b._column(n) for b in blocks]) for n in names}
        return made
