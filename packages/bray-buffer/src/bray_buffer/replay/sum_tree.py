"""A sum tree: items drawn in proportion to their values, in a few steps for a whole batch."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_FANOUT = 8
_MAX_TOP = 2048
"""Sums that are searched directly: one pass over as many costs less than a further level."""

_BELOW = 1 - 2**-52
"""Times a number is just below it."""

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


class _Scratch(NamedTuple):
    """Memory for one level's sums of the first 0, 1, … children, and its rows as pairs."""

    sums: Floats
    flat: Floats
    pairs: list[tuple[Floats, Floats]]
    batch: int
    items: Indices


def _scratch(batch: int) -> _Scratch:
    sums = np.zeros((_FANOUT + 1, batch))
    return _Scratch(
        sums, sums.reshape(-1), list(itertools.pairwise(sums[1:])), batch, np.arange(batch)
    )


class SumTree:
    """Values ≥ 0 of `capacity` items, and sums over them, level by level.

    A level is a matrix `[8, n]`: the sum k of the next level is that of column k. So the items of
    a column are n apart, neighbours lie in neighbouring columns, and a whole batch goes down a
    level by a few operations over `[8, B]`. A sum is always computed anew from what it sums, in
    one order: it never drifts, however often values change.

    Args:
        capacity: Number of items.

    Examples:
        >>> tree = SumTree(4)
        >>> tree.set(np.array([1, 3]), np.array([1.0, 3.0]))
        >>> tree.total, tree.find(np.array([0.5, 1.0, 3.9])).tolist()
        (4.0, [1, 3, 3])
    """

    def __init__(self, capacity: int) -> None:
        self._levels: list[Floats] = []
        size = capacity
        while not self._levels or size > _MAX_TOP:
            size = -(-size // _FANOUT)
            self._levels.append(np.zeros((_FANOUT, size)))
        self._flat = [level.reshape(-1) for level in self._levels]
        self._flat.append(np.zeros(size))
        self._values = self._flat[0]
        self._cumulative: Floats | None = None
        self._scratch = _scratch(1)

    @property
    def total(self) -> float:
        """The sum of all values."""
        return float(self._top()[-1])

    def _top(self) -> Floats:
        """Return the sums of the first 0, 1, … of the last level's."""
        if self._cumulative is None:
            self._cumulative = np.concatenate(([0.0], self._flat[-1].cumsum()))
        return self._cumulative

    def get(self, items: Indices) -> Floats:
        """Return the values of items `[B]`."""
        return self._values.take(items)

    def set(self, items: Indices, values: Floats) -> None:
        """Give items `[B]` new values `[B]`, finite and ≥ 0; of an item named twice the last."""
        self._values[items] = values
        columns = items
        for level, sums in zip(self._levels, self._flat[1:], strict=True):
            columns = columns % level.shape[1]
            # All eight children are added anew: sums never drift.
            sums[columns] = level.take(columns, axis=1).sum(0)
        self._cumulative = None

    def write(self, start: int, stop: int, values: float | Floats) -> None:
        """Give the items from `start` to before `stop` new values; `add_up` has to follow."""
        self._values[start:stop] = values

    def add_up(self, start: int, stop: int) -> None:
        """Compute the sums over the items from `start` to before `stop`."""
        self._sum(0, start, stop)
        self._cumulative = None

    def _sum(self, depth: int, start: int, stop: int) -> None:
        """Compute the sums over a range of one level, and what depends on them."""
        if depth == len(self._levels):
            return
        level, sums = self._levels[depth], self._flat[depth + 1]
        width = level.shape[1]
        first, last = start % width, (stop - 1) % width + 1
        # A range of items is a range of columns, which may wrap round.
        if stop - start >= width:
            ranges = [(0, width)]
        elif first < last:
            ranges = [(first, last)]
        else:
            ranges = [(first, width), (0, last)]
        for begin, end in ranges:
            np.add.reduce(level[:, begin:end], axis=0, out=sums[begin:end])
            self._sum(depth + 1, begin, end)

    def find(self, points: Floats) -> Indices:
        """Return the items `[B]` in whose share of the total the points `[B]` lie.

        The values, in some fixed order one after the other, make up `[0, total)`; an item of value
        0 is never found. Points at or beyond the total count as just below it.
        """
        if len(points) != self._scratch.batch:
            self._scratch = _scratch(len(points))
        sums, flat, pairs, batch, items = self._scratch
        children = sums[1:]
        top = self._top()
        points = np.minimum(points, top[-1] * _BELOW)
        columns = top[1:].searchsorted(points, side="right")
        points -= top.take(columns)
        # Down the tree: at each level one of eight children for every point.
        for level in reversed(self._levels):
            level.take(columns, axis=1, out=children, mode="clip")
            # Added up in the order of `_sum`: the last row equals the sum that led here.
            for before, here in pairs:
                np.add(before, here, here)
            # The subtraction above may have rounded a point up to the end of its column.
            np.minimum(points, children[-1] * _BELOW, out=points)
            rows = np.add.reduce((children <= points).view(np.uint8), axis=0, dtype=np.int64)
            points -= flat.take(rows * batch + items)
            columns = rows * level.shape[1] + columns
        return columns
