"""Packed layouts: a tree of arrays as one contiguous block of bytes, its leaves as views.

A `Layout` is computed from a spec. Each leaf has a fixed offset inside a block of `nbytes`
bytes, so a step, a segment or a set of weights is one block, joining B blocks is one copy each
into a matrix `[B, nbytes]`, and leaves are strided views into it: nothing is copied twice.
"""

from __future__ import annotations

import hashlib
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
"""Of a numpy record."""


@dataclass(frozen=True, slots=True)
class Field:
    """Where one leaf lies inside a block."""

    path: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class Layout:
    """One fixed packed layout of a spec.

    Args:
        spec: nested `ArraySpec` (from `bray_core.nested.spec`).

    Raises:
        SpecError: no leaf at all, a dtype that has no fixed little-endian form, or 2 GB and more.

    Example:
        >>> layout = Layout(nested.spec({"x": np.zeros(3, np.float32), "y": np.int64(0)}))
        >>> block = layout.pack({"x": np.ones((5, 3), np.float32), "y": np.arange(5)})
        >>> block.shape, layout.views(block)["x"].shape
        ((5, 24), (5, 3))
    """

    def __init__(self, spec: Nested) -> None:
        fields = []
        offset = 0
        for path, leaf in nested.items(spec):
            dtype = _fixed_dtype(path, leaf)
            offset = _up(offset, dtype.itemsize)  # as torch wants it, also where numpy asks less
            nbytes = dtype.itemsize * int(np.prod(leaf.shape, dtype=np.int64))
            fields.append(Field(path, dtype, tuple(leaf.shape), offset, nbytes))
            offset += nbytes
        if not fields:
            raise SpecError("layout: expected at least one leaf, got an empty tree")
        self.fields = tuple(fields)
        align = max(_ALIGN, *(f.dtype.itemsize for f in fields))
        self.nbytes = max(align, _up(offset, align))
        if self.nbytes > _MAX_NBYTES:
            raise SpecError(
                f"layout: expected at most {_MAX_NBYTES:,} bytes, got {self.nbytes:,}: "
                "make segments shorter, or pack their parts one by one"
            )
        self.spec = nested.unflatten(spec, [ArraySpec(f.dtype, f.shape) for f in fields])
        self.id = hashlib.blake2b(repr(self.describe()).encode(), digest_size=8).hexdigest()
        self._record = np.dtype(
            {
                "names": [f"f{i}" for i in range(len(fields))],
                "formats": [(f.dtype, f.shape) for f in fields],
                "offsets": [f.offset for f in fields],
                "itemsize": self.nbytes,
            }
        )

    def describe(self) -> list[tuple[str, str, tuple[int, ...], int]]:
        """Return `(path, dtype, shape, offset)` per leaf: all that another language needs."""
        return [(f.path, f.dtype.str, f.shape, f.offset) for f in self.fields]

    def empty(self, *lead: int) -> Block:
        """Return zeroed blocks `[*lead, nbytes]`, touched once so that writing is fast."""
        return np.zeros((*lead, self.nbytes), np.uint8)

    def views(self, block: Block) -> Nested:
        """Return the leaves `[*lead, *shape]` of blocks `[*lead, nbytes]`, without a copy.

        Raises:
            SpecError: the block's last dimension is not `nbytes` contiguous bytes.
        """
        if block.dtype != np.uint8 or block.ndim < 1 or block.shape[-1] != self.nbytes:
            raise SpecError(
                f"block: expected uint8 (..., {self.nbytes}), got {block.dtype} {block.shape}"
            )
        records = block.view(self._record)[..., 0]
        return nested.unflatten(self.spec, [records[f"f{i}"] for i in range(len(self.fields))])

    def pack(self, tree: Nested, out: Block | None = None) -> Block:
        """Copy leaves `[*lead, *shape]` into blocks `[*lead, nbytes]`: one copy a leaf.

        Args:
            tree: nested arrays of this layout's spec, with equal leading dimensions.
            out: where to write; a new block by default.

        Raises:
            SpecError: a leaf does not fit; names its path, expected and got.
        """
        first = self.fields[0]
        leaf = dict(nested.items(tree)).get(first.path)
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

    def __reduce__(self) -> tuple[type[Layout], tuple[Nested]]:
        return Layout, (self.spec,)

    def __repr__(self) -> str:
        return f"Layout({len(self.fields)} leaves, {self.nbytes} bytes, id={self.id})"


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
