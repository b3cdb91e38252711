"""A ring of packed segments: one preallocated matrix of bytes, one copy a segment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager

import numpy as np
import numpy.typing as npt

from bray_core.layout import Block, Layout

_SNAPSHOT_BYTES = 4 * 1024 * 1024


class SegmentRing:
    """Segments in the order in which they came, `capacity` at most. Not thread-safe."""

    def __init__(self, layout: Layout, capacity: int) -> None:
        self.capacity = capacity
        self.size = 0
        self.first = 0
        """Number of the oldest segment, counted from the first that ever came."""
        self.row_bytes = layout.nbytes
        self._row = 0
        """Row of the oldest segment. An emptied ring begins at 0 again, so that memory is touched,
        and so taken, only for as many segments as were ever there together."""
        self._blocks = layout.empty(capacity)

    def extend(self, rows: Block) -> None:
        """Copy rows `[B, nbytes]` in; there must be room for them."""
        start = (self._row + self.size) % self.capacity
        count, before_end = len(rows), self.capacity - start
        if count <= before_end:
            self._blocks[start : start + count] = rows
        else:
            self._blocks[start:] = rows[:before_end]
            self._blocks[: count - before_end] = rows[before_end:]
        self.size += count

    def at(self, index: npt.NDArray[np.int64]) -> Block:
        """Return a copy of the segments at `index [B]` (0 is the oldest), `[B, nbytes]`."""
        return self._blocks.take(self._row + index, axis=0, mode="wrap")

    def parts(self, count: int) -> list[Block]:
        """Return views of the `count` oldest segments: one block `[b, nbytes]`, or two."""
        start = self._row
        before_end = self.capacity - start
        parts = [self._blocks[start : start + count]]
        if count > before_end:
            parts.append(self._blocks[: count - before_end])
        return parts

    def drop(self, count: int) -> None:
        """Remove the `count` oldest segments."""
        self.first += count
        self.size -= count
        self._row = (self._row + count) % self.capacity if self.size else 0

    def keep(self, index: npt.NDArray[np.int64]) -> None:
        """Remove all but the segments at `index [B]`, which keep their order."""
        kept = self.at(index)
        self.drop(self.size)
        self.extend(kept)


def snapshot(ring: SegmentRing, lock: AbstractContextManager[object]) -> Iterator[Block]:
    """Yield copies of what the ring holds now, in order, some MiB at a time.

    The lock is held for each copy alone. What left the ring before its turn is left out, what
    came after the start too.
    """
    with lock:
        at, end = ring.first, ring.first + ring.size
        rows = max(1, _SNAPSHOT_BYTES // ring.row_bytes)
    while at < end:
        with lock:
            # What was dropped since the last copy is skipped.
            at = max(at, ring.first)
            block = ring.at(np.arange(at, min(end, at + rows)) - ring.first)
        at += len(block)
        yield block
