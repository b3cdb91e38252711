"""A trial's `metrics.jsonl` files as columns, which are read on as the files grow.

A column holds only the lines that have its metric, so memory grows with the number of values, not
with names times lines.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bray.viewer.trial_file import launches, open_file
from bray_core.metrics.json_lines import FILE, Row, is_known_count, rows, whole_lines

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

AXES = ("frames", "steps", "seconds", "policy_version")
"""Choices for x: environment steps, optimiser steps, seconds of all launches, policy version."""
TAIL_BYTES = 256 * 1024
MAX_NAMES = 10_000
"""Number of a launch's metrics that are kept; a registry takes 4,096."""
MAX_NAME = 1000
"""Greatest length of a metric's name with its labels, in characters."""
_SURROUNDINGS = ("process/", "machine/")
_MAX_PARTS = 64
_VALUE_BYTES, _NAME_BYTES = 16, 400


class Curve(NamedTuple):
    """A metric over all launches of a trial, arrays `[N]` in the order in which it was written."""

    x: Floats
    y: Floats
    launch: Ints
    """Number of each point's launch, from 0: no line is drawn from one launch to the next."""


def tail(trial: Path) -> list[Row]:
    """Return the last lines of the newest launch that wrote any of its own.

    What a launch writes before it plays, of its processes and machines, takes no figure away: so
    long the launch before it is shown.
    """
    first: list[Row] = []
    for launch in reversed(launches(trial)):
        try:
            with open_file(trial, launch / FILE) as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(0, end - TAIL_BYTES))  # a cut first line is no row
                found = rows(file.read(TAIL_BYTES))
        except OSError:
            continue
        if any(not name.startswith(_SURROUNDINGS) for row in found for name in row.values):
            return found
        first = first or found
    return first


class MetricLog:
    """The metrics of a trial over all its launches. Thread-safe.

    Args:
        trial: folder of the trial.
    """

    def __init__(self, trial: Path) -> None:
        self._trial = trial
        self._lock = threading.Lock()
        self._launches: dict[str, _Launch] = {}

    @property
    def num_bytes(self) -> int:
        """Memory that the metrics take, about."""
        return sum(launch.num_bytes for launch in list(self._launches.values()))

    def names(self) -> set[str]:
        """Return the names of all metrics that any launch has recorded."""
        with self._lock:
            return set().union(*(launch.columns for launch in self._refreshed()))

    def curve(self, metric: str, axis: str) -> Curve:
        """Return a metric; a count goes on where the launch before it ended, as the axes do."""
        xs, ys, numbers = [np.empty(0)], [np.empty(0)], [np.empty(0, np.int64)]
        counted = 0.0
        with self._lock:
            for number, launch in enumerate(self._refreshed()):
                x, y = launch.curve(metric, axis)
                if not len(y):
                    continue
                is_count = is_known_count(metric) or metric in launch.counts
                y = y + counted if is_count else y  # not +=: y is the kept column itself
                counted = float(y[-1]) if is_count else 0.0
                xs.append(x)
                ys.append(y)
                numbers.append(np.full(len(x), number))
        return Curve(np.concatenate(xs), np.concatenate(ys), np.concatenate(numbers))

    def _refreshed(self) -> list[_Launch]:
        """Read the lines that are new; return the launches, the oldest first."""
        every = launches(self._trial)
        if self._was_replaced(every):
            self._launches = {}
        for launch in every:
            known = self._launches.setdefault(launch.name, _Launch())
            try:
                with open_file(self._trial, launch / FILE) as file:
                    for block, end in whole_lines(file, known.num_read):
                        known.add(rows(block))
                        known.num_read = end
            except OSError:  # a launch that has not written a metric yet
                continue
        return [self._launches[launch.name] for launch in every]

    def _was_replaced(self, every: Sequence[Path]) -> bool:
        """Return whether another trial has taken this name: a file that was read is gone."""
        sizes = {launch.name: _size(launch / FILE) for launch in every}
        return any(sizes.get(n, -1) < known.num_read for n, known in self._launches.items())


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


class _Launch:
    """The axes of one launch's lines, and for each metric its values and their lines."""

    def __init__(self) -> None:
        self.num_read = 0
        """Number of bytes of its file that were read."""
        self.counts: set[str] = set()
        self.columns: dict[str, list[tuple[Ints, Floats]]] = {}
        self._axes: list[Floats] = []
        self._num_rows = self._num_values = 0

    @property
    def num_bytes(self) -> int:
        values = self._num_values * _VALUE_BYTES + self._num_rows * 8 * len(AXES)
        return values + len(self.columns) * _NAME_BYTES

    def add(self, found: Sequence[Row]) -> None:
        """Add rows that were read together."""
        if not found:
            return
        axes = [[getattr(row, axis) for axis in AXES] for row in found]
        self._axes.append(np.array(axes, np.float64))
        new: dict[str, tuple[list[int], list[float]]] = {}
        for at, row in enumerate(found, self._num_rows):
            self.counts.update(self._known(row.counts))
            for name, value in row.values.items():
                if value is not None:
                    where, values = new.setdefault(name, ([], []))
                    where.append(at)
                    values.append(value)
        for name in self._known(new):
            where, values = new[name]
            parts = self.columns.setdefault(name, [])
            parts.append((np.array(where), np.array(values)))
            self._num_values += len(values)
            if len(parts) > _MAX_PARTS:  # a run that is watched brings a few rows each time
                parts[:] = [_joined(parts)]
        if len(self._axes) > _MAX_PARTS:
            self._axes = [np.concatenate(self._axes)]
        self._num_rows += len(found)

    def _known(self, names: Iterable[str]) -> list[str]:
        """Return the names that are kept: the first `MAX_NAMES`."""
        short = [name for name in names if len(name) <= MAX_NAME]
        room = MAX_NAMES - len(self.columns)
        fresh = [name for name in short if name not in self.columns]
        return [name for name in short if name in self.columns] + fresh[:room]

    def curve(self, metric: str, axis: str) -> tuple[Floats, Floats]:
        parts = self.columns.get(metric)
        if parts is None:
            return np.empty(0), np.empty(0)
        where, values = _joined(parts)
        parts[:] = [(where, values)]  # joined once, for all curves until new lines come
        self._axes = [np.concatenate(self._axes)]
        return self._axes[0][where, AXES.index(axis)], values


def _joined(parts: Sequence[tuple[Ints, Floats]]) -> tuple[Ints, Floats]:
    return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])
