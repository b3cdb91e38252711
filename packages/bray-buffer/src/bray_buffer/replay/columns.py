"""One leaf of every step: a row a slot, gathered into batches."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from bray_buffer.memory import reserve
from bray_buffer.replay.step_ring import Place
from bray_core.nested import ArraySpec

Leaf = npt.NDArray[Any]
Places = npt.NDArray[np.int64]
"""Where a row lies: a slot; or capacity + the `end` of a segment, for its final observation; or
2 · capacity, a row of zeros."""

_LARGE = 2048
"""Bytes of a batch's row from which on it is filled by itself, without a copy between."""


class Column(Protocol):
    """A leaf `[T, …]` of segments."""

    def check(self, leaf: Leaf, count: int) -> None:
        """Raise SpecError if a segment's leaf `[T, …]` is not what is claimed of it."""
        ...

    def write(self, place: Place, spans: list[tuple[int, int, int, int]], leaf: Leaf) -> None:
        """Copy a segment's leaf `[T, …]` in."""
        ...

    def write_end(self, place: Place, leaf: Leaf) -> None:
        """Copy a segment's final observation in."""
        ...

    def gather(self, places: Places, out: Leaf) -> None:
        """Fill `out [B, …, *shape]` from `places [B, …]`."""
        ...

    def record(self, length: int) -> ArraySpec:
        """Return what a segment of `length` steps has of this leaf in a saved file."""
        ...

    def save(self, place: Place, slots: Places, out: Leaf) -> None:
        """Fill `out` of `record` with one segment's rows."""
        ...

    def restore(self, leaf: Leaf) -> Leaf:
        """Return what `write` takes, from what `save` filled."""
        ...


class PlainColumn:
    """A leaf that is stored as it comes.

    Args:
        capacity: slots.
        spec: of one step.
        rows: memory `[2 · capacity + 1, *shape]`, by default its own.
    """

    def __init__(self, capacity: int, spec: ArraySpec, rows: Leaf | None = None) -> None:
        self._capacity = capacity
        self._spec = spec
        if rows is None:
            count, size = 2 * capacity + 1, int(np.prod(spec.shape, dtype=np.int64))
            memory = reserve(count, max(1, size * spec.dtype.itemsize))
            rows = memory.reshape(-1)[: count * size * spec.dtype.itemsize].view(spec.dtype)
            rows = rows.reshape(count, *spec.shape)
        self.rows = rows

    def check(self, leaf: Leaf, count: int) -> None:
        """Nothing is claimed."""

    def write(self, place: Place, spans: list[tuple[int, int, int, int]], leaf: Leaf) -> None:
        """Copy a segment's leaf in."""
        for first, last, begin, end in spans:
            # A slice less where it is all of it, which is nearly always.
            self.rows[first:last] = leaf if end - begin == len(leaf) else leaf[begin:end]

    def write_end(self, place: Place, leaf: Leaf) -> None:
        """Copy a segment's final observation in."""
        self.rows[self._capacity + place.end] = leaf

    def gather(self, places: Places, out: Leaf) -> None:
        """Fill `out [B, …, *shape]` from `places [B, …]`."""
        take(self.rows, places, out)

    def record(self, length: int) -> ArraySpec:
        """Return the leaf as segments have it."""
        return ArraySpec(self._spec.dtype, (length, *self._spec.shape))

    def save(self, place: Place, slots: Places, out: Leaf) -> None:
        """Copy one segment's rows out."""
        out[: place.length] = self.rows[slots]

    def restore(self, leaf: Leaf) -> Leaf:
        """Return it as it is."""
        return leaf


def take(rows: Leaf, places: Places, out: Leaf) -> None:
    """Fill `out [B, …, *shape]` with `rows [N, *shape]` at `places [B, …]`; one copy a large row.

    `out` lies apart from row to row of the batch, and numpy takes into contiguous memory only.
    """
    if out[:1].nbytes < _LARGE:
        out[...] = rows[places]  # `take` would first copy all rows where they lie apart
        return
    for at, index in enumerate(places):
        if index.ndim:
            rows.take(index, axis=0, out=out[at], mode="clip")
        else:
            out[at] = rows[index]
