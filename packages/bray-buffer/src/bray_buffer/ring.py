"""A ring of packed segments: one preallocated matrix of bytes, one copy a segment."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bray_core import nested
from bray_core.errors import ConfigError, SpecError
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
    if isinstance(segment, Packed):
        if segment.layout != layout:
            _explain(layout, segment.layout)
        return segment.block.reshape(-1, layout.nbytes)
    nested.check(segment, layout.spec, (), "segment")
    return layout.pack(segment).reshape(1, layout.nbytes)


def _explain(expected: Layout, got: Layout) -> None:
    """Raise the SpecError that names the first leaf in which two layouts differ."""
    nested.check(got.views(got.empty()), expected.spec, (), "segment")
    raise SpecError(f"segment: expected layout {expected.id}, got {got.id}")


class Ring:
    """Segments in the order in which they came, `capacity` at most. Not thread-safe."""

    def __init__(self, layout: Layout, capacity: int) -> None:
        self.layout = layout
        self.capacity = capacity
        self.size = 0
        self._first = 0
        self._blocks = layout.empty(capacity)
        fields = {field.path for field in layout.fields}
        self._lengths: npt.NDArray[Any] | None = (
            layout.views(self._blocks)["length"] if "length" in fields else None
        )

    def append(self, row: Block) -> None:
        """Copy one row `[nbytes]` in; the ring must not be full."""
        self._blocks[(self._first + self.size) % self.capacity] = row
        self.size += 1

    def steps(self, index: int) -> int:
        """Return the valid steps of the segment at `index` (0 is the oldest)."""
        if self._lengths is None:
            raise ConfigError("batch_steps: needs segments with a leaf `length`: use batch_size")
        return int(self._lengths[(self._first + index) % self.capacity])

    def take(self, count: int) -> Block:
        """Remove the `count` oldest segments and return a copy of them `[count, nbytes]`."""
        taken = self.peek(count)
        self.drop(count)
        return taken

    def peek(self, count: int) -> Block:
        """Return a copy of the `count` oldest segments."""
        return self._blocks[(self._first + np.arange(count)) % self.capacity]

    def drop(self, count: int) -> None:
        """Remove the `count` oldest segments."""
        self._first = (self._first + count) % self.capacity
        self.size -= count
