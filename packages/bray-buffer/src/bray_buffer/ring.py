"""A ring of packed segments: one preallocated matrix of bytes, one copy a segment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager

import numpy as np
import numpy.typing as npt

from bray_core import nested
from bray_core.errors import SpecError
from bray_core.layout import Block, Layout, Packed
from bray_core.nested import Nested

_SNAPSHOT_BYTES = 4 * 1024 * 1024


def as_layout(layout: Layout | Nested) -> Layout:
    """Accept a `Layout` or the spec that it is made of.

    Raises:
        SpecError: a leaf has a dimension of 0: segments of no steps are none.
    """
    layout = layout if isinstance(layout, Layout) else Layout(layout)
    for field in layout.fields:
        if 0 in field.shape:
            raise SpecError(
                f"layout: {field.path or 'the leaf'} has shape {field.shape}: expected dimensions "
                "of 1 or more"
            )
    return layout


def as_rows(layout: Layout, segment: Packed | Nested) -> Block:
    """Return one segment's block `[1, nbytes]`, or several packed ones' `[B, nbytes]`.

    Raises:
        SpecError: the segment does not fit the layout; names the leaf, expected and got.
    """
    if not isinstance(segment, Packed):
        nested.check(segment, layout.spec, (), "segment")
        return layout.pack(segment).reshape(1, layout.nbytes)
    if segment.layout != layout:
        _explain(layout, segment.layout)
    block = segment.block
    if block.dtype != np.uint8 or not 1 <= block.ndim <= 2 or block.shape[-1] != layout.nbytes:
        raise SpecError(
            f"segment: expected a block uint8 ({layout.nbytes},) or (B, {layout.nbytes}), "
            f"got {block.dtype} {block.shape}"
        )
    return block.reshape(-1, layout.nbytes)


def _explain(expected: Layout, got: Layout) -> None:
    """Raise the SpecError that names the first leaf in which two layouts differ."""
    nested.check(got.views(got.empty()), expected.spec, (), "segment")
    raise SpecError(f"segment: expected layout {expected.id}, got {got.id}")


class Ring:
    """Segments in the order in which they came, `capacity` at most. Not thread-safe."""

    def __init__(self, layout: Layout, capacity: int) -> None:
        self.capacity = capacity
        self.size = 0
        self.first = 0
        """Number of the oldest segment, counted from the first that ever came."""
        self.row_bytes = layout.nbytes
        self._row = 0
        """Of the oldest segment. A ring that was emptied begins at 0 again, so that memory is
        touched, and so taken, only for as many as were ever there together."""
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

    def oldest(self, count: int) -> Block:
        """Return a copy of the `count` oldest segments."""
        return np.concatenate(self.parts(count))

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


def snapshot(ring: Ring, lock: AbstractContextManager[object]) -> Iterator[Block]:
    """Yield copies of what the ring holds now, in order, some MiB at a time.

    The lock is held for each copy alone. What left the ring before its turn is left out, what
    came after the start too.
    """
    with lock:
        at, end = ring.first, ring.first + ring.size
        rows = max(1, _SNAPSHOT_BYTES // ring.row_bytes)
    while at < end:
        with lock:
            at = max(at, ring.first)
            block = ring.at(np.arange(at, min(end, at + rows)) - ring.first)
        at += len(block)
        yield block
