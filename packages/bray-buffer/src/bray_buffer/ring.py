"""A ring of packed segments: one preallocated matrix of bytes, one copy a segment."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bray_core import nested
from bray_core.errors import SpecError
from bray_core.layout import Block, Layout, Packed
from bray_core.nested import Nested


def as_layout(layout: Layout | Nested) -> Layout:
    """Accept a `Layout` or the spec that it is made of."""
    return layout if isinstance(layout, Layout) else Layout(layout)


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
        self._blocks = layout.empty(capacity)

    def append(self, row: Block) -> None:
        """Copy one row `[nbytes]` in; the ring must not be full."""
        self._blocks[(self.first + self.size) % self.capacity] = row
        self.size += 1

    def at(self, index: npt.NDArray[np.int64]) -> Block:
        """Return a copy of the segments at `index [B]` (0 is the oldest), `[B, nbytes]`."""
        return self._blocks.take(self.first % self.capacity + index, axis=0, mode="wrap")

    def oldest(self, count: int) -> Block:
        """Return a copy of the `count` oldest segments."""
        return self.at(np.arange(count))

    def drop(self, count: int) -> None:
        """Remove the `count` oldest segments."""
        self.first += count
        self.size -= count
