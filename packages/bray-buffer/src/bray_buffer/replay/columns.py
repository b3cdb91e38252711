"""One leaf of every step: a row a slot, gathered into batches."""

from __future__ import annotations

import mmap
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from bray_buffer.replay.step_ring import SegmentPlace, Spans
from bray_core.errors import CapacityError
from bray_core.layout import Block
from bray_core.nested import ArraySpec

Leaf = npt.NDArray[Any]
Places = npt.NDArray[np.int64]
"""Places of rows: a slot; or capacity + the `end` of a segment, for its final observation; or
2 · capacity, a row of zeros."""

_LARGE = 2048
"""Size in bytes from which a row of a batch is filled by itself, without a copy between."""


_NO_RESERVE = 0x4000
"""Linux' MAP_NORESERVE, which Python 3.11 does not name: no page is set aside before its use."""


class Column(Protocol):
    """A leaf `[T, …]` of segments."""

    def check(self, leaf: Leaf, count: int) -> None:
        """Raise SpecError if a segment's leaf `[T, …]` breaks the promise of its column."""
        ...

    def write(self, place: SegmentPlace, spans: Spans, leaf: Leaf) -> None:
        """Copy a segment's leaf `[T, …]` in."""
        ...

    def write_end(self, place: SegmentPlace, leaf: Leaf) -> None:
        """Copy a segment's final observation in."""
        ...

    def gather(self, places: Places, out: Leaf) -> None:
        """Fill `out [B, …, *shape]` from `places [B, …]`."""
        ...

    def record(self, length: int) -> ArraySpec:
        """Return what a segment of `length` steps has of this leaf in a saved file."""
        ...

    def save(self, place: SegmentPlace, slots: Places, out: Leaf) -> None:
        """Fill `out` of `record` with one segment's rows."""
        ...

    def restore(self, leaf: Leaf) -> Leaf:
        """Return what `write` takes, from what `save` filled."""
        ...


class PlainColumn:
    """A leaf that is stored as it comes.

    Args:
        capacity: Number of slots.
        spec: Shape and dtype of one step.
        rows: Memory `[2 · capacity + 1, *shape]`; by default the column makes its own.
    """

    def __init__(self, capacity: int, spec: ArraySpec, rows: Leaf | None = None) -> None:
        self._capacity = capacity
        self._spec = spec
        if rows is None:
            count, size = 2 * capacity + 1, int(np.prod(spec.shape, dtype=np.int64))
            memory = reserve_rows(count, max(1, size * spec.dtype.itemsize))
            rows = memory.reshape(-1)[: count * size * spec.dtype.itemsize].view(spec.dtype)
            rows = rows.reshape(count, *spec.shape)
        self.rows = rows

    def check(self, leaf: Leaf, count: int) -> None:
        """Accept every leaf."""

    def write(self, place: SegmentPlace, spans: Spans, leaf: Leaf) -> None:
        """Copy a segment's leaf in."""
        for first, last, begin, end in spans:
            # A slice less where it is all of it, which is nearly always.
            self.rows[first:last] = leaf if end - begin == len(leaf) else leaf[begin:end]

    def write_end(self, place: SegmentPlace, leaf: Leaf) -> None:
        """Copy a segment's final observation in."""
        self.rows[self._capacity + place.end] = leaf

    def gather(self, places: Places, out: Leaf) -> None:
        """Fill `out [B, …, *shape]` from `places [B, …]`."""
        take(self.rows, places, out)

    def record(self, length: int) -> ArraySpec:
        """Return the leaf as segments have it."""
        return ArraySpec(self._spec.dtype, (length, *self._spec.shape))

    def save(self, place: SegmentPlace, slots: Places, out: Leaf) -> None:
        """Copy one segment's rows out."""
        out[: place.length] = self.rows[slots]

    def restore(self, leaf: Leaf) -> Leaf:
        """Return the leaf as it is."""
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


def reserve_rows(rows: int, nbytes: int) -> Block:
    """Return zeroed rows `[rows, nbytes]`; a page takes memory from its first write on.

    Raises:
        CapacityError: the system refuses as much address space.
    """
    total = rows * nbytes
    try:
        memory = mmap.mmap(-1, total, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
    except (OSError, OverflowError, ValueError) as error:
        raise CapacityError(
            f"capacity: the system refuses {total} bytes of address space ({error}): lower it"
        ) from error
    memory.madvise(mmap.MADV_HUGEPAGE)  # random rows: fewer misses of the address cache
    return np.frombuffer(memory, np.uint8).reshape(rows, nbytes)
