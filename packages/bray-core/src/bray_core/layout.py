"""Packed layouts: a tree of arrays as one contiguous block of bytes, its leaves as views.

A `Layout` is computed from a spec. Each leaf has a fixed offset inside a block of `nbytes`
bytes, so a step, a segment or a set of weights is one block, joining B blocks is one copy each
into a matrix `[B, nbytes]`, and leaves are strided views into it: nothing is copied twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from bray_core import nested
from bray_core.errors import SpecError
from bray_core.nested import ArraySpec, Nested

Block: TypeAlias = npt.NDArray[np.uint8]
"""Bytes `[*lead, nbytes]`."""

_ALIGN = 8
_KINDS = "biufc"
_MAX_NBYTES = 2**31 - 1
"""Largest numpy record."""


@dataclass(frozen=True, slots=True)
class Field:
    """Place of one leaf inside a block."""

    path: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class Layout:
    """One fixed packed layout of a spec.

    Args:
        spec: Nested `ArraySpec` (from `bray_core.nested.spec`).
        offsets: Offset of each leaf in a block, in the fixed order of leaves; by default one after
            the other. Leaves may share bytes: such a layout is for reading.
        nbytes: Size of a block; by default up to the end of the last leaf.

    Raises:
        SpecError: No leaf at all, a dtype that has no fixed little-endian form, an offset that is
            not aligned or beyond the block, or 2 GB and more.

    Examples:
        >>> layout = Layout(nested.spec({"x": np.zeros(3, np.float32), "y": np.int64(0)}))
        >>> block = layout.pack({"x": np.ones((5, 3), np.float32), "y": np.arange(5)})
        >>> block.shape, layout.views(block)["x"].shape
        ((5, 24), (5, 3))
    """

    def __init__(
        self, spec: Nested, *, offsets: Sequence[int] | None = None, nbytes: int | None = None
    ) -> None:
        self.fields = fields = _fields(spec, offsets)
        align = max(_ALIGN, *(f.dtype.itemsize for f in fields))
        least = max(align, _up(max(f.offset + f.nbytes for f in fields), align))
        self.nbytes = least if nbytes is None else nbytes
        if self.nbytes < least or self.nbytes % align:
            raise SpecError(
                f"nbytes: expected a multiple of {align}, {least} or more, got {nbytes}"
            )
        if self.nbytes > _MAX_NBYTES:
            raise SpecError(
                f"layout: expected at most {_MAX_NBYTES:,} bytes, got {self.nbytes:,}: "
                "make segments shorter, or pack their parts one by one"
            )
        self.spec = nested.unflatten(spec, [ArraySpec(f.dtype, f.shape) for f in fields])
        identity = [*self.describe(), *([self.nbytes] if self.nbytes > least else [])]
        self.id = hashlib.blake2b(repr(identity).encode(), digest_size=8).hexdigest()
        self._is_placed = offsets is not None or nbytes is not None
        self._names = [f"f{i}" for i in range(len(fields))]
        self._record = np.dtype(
            {
                "names": self._names,
                "formats": [(f.dtype, f.shape) for f in fields],
                "offsets": [f.offset for f in fields],
                "itemsize": self.nbytes,
            }
        )
        self._keys = tuple(sorted(spec)) if _is_flat(spec) else None

    def describe(self) -> list[tuple[str, str, tuple[int, ...], int]]:
        """Return `(path, dtype, shape, offset)` of each leaf, for programs in other languages."""
        return [(f.path, f.dtype.str, f.shape, f.offset) for f in self.fields]

    def empty(self, *lead: int) -> Block:
        """Return zeroed blocks `[*lead, nbytes]`, touched once so that writing is fast."""
        return np.zeros((*lead, self.nbytes), np.uint8)

    def views(self, block: Block) -> Nested:
        """Return the leaves `[*lead, *shape]` of blocks `[*lead, nbytes]`, without a copy.

        Raises:
            SpecError: The block's last dimension is not `nbytes` contiguous bytes.
        """
        leaves = self.columns(block)
        if self._keys is not None:  # the way of a flat dict, in half the time
            return dict(zip(self._keys, leaves, strict=True))
        return nested.unflatten(self.spec, leaves)

    def columns(self, block: Block) -> list[npt.NDArray[Any]]:
        """Return the leaves as `views` does, in the order of `fields`."""
        if block.dtype != np.uint8 or block.ndim < 1 or block.shape[-1] != self.nbytes:
            raise SpecError(
                f"block: expected uint8 (..., {self.nbytes}), got {block.dtype} {block.shape}"
            )
        records = block.view(self._record)[..., 0]
        return [records[name] for name in self._names]

    def pack(self, tree: Nested, out: Block | None = None) -> Block:
        """Copy leaves `[*lead, *shape]` into blocks `[*lead, nbytes]`: one copy per leaf.

        Args:
            tree: Nested arrays of this layout's spec, with equal leading dimensions.
            out: Blocks to write into; new ones by default.

        Raises:
            SpecError: A leaf does not fit; names its path, expected and got.
        """
        first = self.fields[0]
        leaf = next((leaf for path, leaf in nested.items(tree) if path == first.path), None)
        ndim = leaf.ndim - len(first.shape) if isinstance(leaf, np.ndarray | np.generic) else 0
        lead = leaf.shape[:ndim] if leaf is not None and ndim > 0 else ()
        nested.check(tree, self.spec, lead)
        if out is None:
            out = self.empty(*lead)
        elif out.shape[:-1] != lead:
            raise SpecError(f"out: expected leading dimensions {lead}, got {out.shape[:-1]}")
        for (_, source), (_, target) in zip(
            nested.items(tree), nested.items(self.views(out)), strict=True
        ):
            target[...] = source
        return out

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __reduce__(self) -> tuple[Callable[..., Layout], tuple[Any, ...]]:
        if not self._is_placed:
            return Layout, (self.spec,)
        return _placed, (self.spec, [f.offset for f in self.fields], self.nbytes)

    def __repr__(self) -> str:
        return f"Layout({len(self.fields)} leaves, {self.nbytes} bytes, id={self.id})"


def _placed(spec: Nested, offsets: list[int], nbytes: int) -> Layout:
    return Layout(spec, offsets=offsets, nbytes=nbytes)


def _fields(spec: Nested, offsets: Sequence[int] | None) -> tuple[Field, ...]:
    fields: list[Field] = []
    end = 0
    leaves = list(nested.items(spec))
    if not leaves:
        raise SpecError("layout: expected at least one leaf, got an empty tree")
    if offsets is not None and len(offsets) != len(leaves):
        raise SpecError(f"offsets: expected one for each of {len(leaves)} leaves, got {offsets}")
    for index, (path, leaf) in enumerate(leaves):
        dtype = _fixed_dtype(path, leaf)
        # Aligned as torch wants it, also where numpy asks less.
        offset = _up(end, dtype.itemsize) if offsets is None else offsets[index]
        if offset < 0 or offset % dtype.itemsize:
            raise SpecError(
                f"{path or 'tree'}: expected an offset that is a multiple of {dtype.itemsize}, "
                f"got {offset}"
            )
        nbytes = dtype.itemsize * int(np.prod(leaf.shape, dtype=np.int64))
        fields.append(Field(path, dtype, tuple(leaf.shape), offset, nbytes))
        end = offset + nbytes
    return tuple(fields)


def _is_flat(spec: Nested) -> bool:
    return isinstance(spec, dict) and all(isinstance(leaf, ArraySpec) for leaf in spec.values())


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _fixed_dtype(path: str, leaf: Any) -> np.dtype[Any]:
    if not isinstance(leaf, ArraySpec):
        raise SpecError(f"{path or 'tree'}: expected an ArraySpec, got {type(leaf).__name__}")
    if leaf.dtype.kind not in _KINDS:
        raise SpecError(
            f"{path or 'tree'}: expected a bool, integer, float or complex dtype, got {leaf.dtype}"
        )
    return leaf.dtype.newbyteorder("<")


@dataclass(frozen=True, slots=True)
class Packed:
    """Blocks together with the layout that reads them: a segment, a batch, a weight set."""

    layout: Layout
    block: Block

    @property
    def tree(self) -> Nested:
        """The leaves `[*lead, *shape]` as views into the block."""
        return self.layout.views(self.block)
