"""A nested spec compiled for the hot path: trees to leaves and back, checked in a microsecond."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from bray_core import nested
from bray_core.errors import SpecError
from bray_core.nested import ArraySpec, Nested

Leaf: TypeAlias = npt.NDArray[Any]
Leaves: TypeAlias = list[Leaf]

_KINDS = "biufc"


class TreeSpec:
    """Checks trees against a spec without batch dimension.

    Args:
        spec: Nested `ArraySpec`.
        name: Beginning of the paths of leaves, such as `inputs`.

    Raises:
        SpecError: The tree has no leaf at all, or a dtype that is neither bool nor a number.
    """

    def __init__(self, spec: Nested, name: str) -> None:
        fields = list(nested.items(spec, name))
        if not fields:
            raise SpecError(f"{name}: expected at least one array, got an empty tree")
        for path, leaf in fields:
            if not isinstance(leaf, ArraySpec) or leaf.dtype.kind not in _KINDS:
                raise SpecError(f"{path}: expected a bool or number dtype, got {leaf}")
        self.spec = spec
        self.name = name
        self.paths = tuple(path for path, _ in fields)
        self.specs: tuple[ArraySpec, ...] = tuple(leaf for _, leaf in fields)
        self._wanted = [(leaf.dtype, leaf.shape) for leaf in self.specs]
        self._read = _reader(spec)
        self._build = _builder(spec)

    def build(self, leaves: Iterable[Any]) -> Nested:
        """Return the tree of leaves given in the fixed order, in the spec's container types."""
        return self._build(iter(leaves))

    def leaves(self, tree: Nested) -> Leaves | None:
        """Return the leaves in the fixed order, unchecked; None if the structure differs."""
        leaves: Leaves = []
        return leaves if self._read(tree, leaves) else None

    def row(self, tree: Nested) -> Leaves:
        """Return the leaves `[*shape]` of one row.

        Raises:
            SpecError: names the first leaf that does not fit, expected and got.
        """
        leaves = self.leaves(tree)
        if leaves is not None:
            for leaf, (dtype, shape) in zip(leaves, self._wanted, strict=True):
                if type(leaf) is not np.ndarray or leaf.shape != shape or leaf.dtype != dtype:
                    break
            else:
                return leaves
        return self._checked(tree, (), "for rows [B, ...] pass batch=True")

    def batch(self, tree: Nested) -> tuple[Leaves, int]:
        """Return the leaves `[B, *shape]` of B rows, and B.

        Raises:
            SpecError: names the first leaf that does not fit, expected and got.
        """
        leaves = self.leaves(tree)
        if leaves is None or not self._fits_batch(leaves):
            leaves = self._checked(tree, (None,), "for one row without batch dimension batch=False")
        return leaves, self._num_rows(leaves)

    def exactly(self, tree: Nested, rows: int) -> Leaves:
        """Return the leaves `[rows, *shape]` of what a network computed.

        Raises:
            SpecError: The structure, a shape or a dtype differs; names the leaf.
        """
        leaves = self.leaves(tree)
        if leaves is None:
            raise SpecError(f"{self.name}: expected the leaves {self.paths}, got another structure")
        for path, (dtype, shape), leaf in zip(self.paths, self._wanted, leaves, strict=True):
            if leaf.shape != (rows, *shape) or leaf.dtype != dtype:
                raise SpecError(
                    f"{path}: expected {dtype} {(rows, *shape)}, got {leaf.dtype} {leaf.shape}"
                )
        return leaves

    def _fits_batch(self, leaves: Leaves) -> bool:
        return all(
            type(leaf) is np.ndarray and leaf.ndim and leaf.shape[1:] == shape and leaf.dtype == dt
            for leaf, (dt, shape) in zip(leaves, self._wanted, strict=True)
        )

    def _num_rows(self, leaves: Leaves) -> int:
        rows = leaves[0].shape[0]
        for path, leaf in zip(self.paths, leaves, strict=True):
            if leaf.shape[0] != rows:
                raise SpecError(
                    f"{path}: expected {rows} rows as in {self.paths[0]}, got {leaf.shape[0]}"
                )
        if not rows:
            raise SpecError(f"{self.paths[0]}: expected at least one row, got a batch of 0")
        return int(rows)

    def _checked(self, tree: Nested, lead: tuple[None, ...], other: str) -> Leaves:
        """Check slowly: this finds the message, and lets numpy scalars pass as arrays."""
        try:
            nested.check(tree, self.spec, lead, self.name)
        except SpecError as error:
            cure = f"; {other}" if self._fits(tree, () if lead else (None,)) else ""
            raise SpecError(f"{error}{cure}") from None
        return [np.asarray(leaf) for _, leaf in nested.items(tree)]

    def _fits(self, tree: Nested, lead: tuple[None, ...]) -> bool:
        try:
            nested.check(tree, self.spec, lead)
        except SpecError:
            return False
        return True


def unbatched(tree: Nested, name: str) -> tuple[Nested, int]:
    """Return the spec of `tree` without its batch dimension, and the batch size.

    Raises:
        SpecError: a leaf is no array or has no batch dimension, or the sizes disagree.
    """
    leaves = list(nested.items(tree, name))
    nested.spec(dict(leaves))  # refuses what is no array
    sizes = []
    for path, leaf in leaves:
        if not leaf.ndim:
            raise SpecError(
                f"{path}: expected a leading batch dimension [B, ...], got {leaf.dtype} (): "
                "add one, such as x[None]"
            )
        sizes.append(leaf.shape[0])
        if leaf.shape[0] != sizes[0]:
            raise SpecError(
                f"{path}: expected {sizes[0]} rows as in {leaves[0][0]}, got {leaf.dtype} "
                f"{leaf.shape}: every array needs the same leading batch dimension"
            )
    if not sizes or not sizes[0]:
        raise SpecError(f"{name}: expected arrays with at least one row, got none")
    spec = nested.map(lambda leaf: ArraySpec(leaf.dtype, leaf.shape[1:]), tree)
    return spec, sizes[0]


def _reader(node: Nested) -> Callable[[Nested, Leaves], bool]:
    """Return a function that appends a tree's leaves, or returns False if it has another form."""
    if isinstance(node, ArraySpec):

        def read_leaf(tree: Nested, out: Leaves) -> bool:
            out.append(tree)
            return True

        return read_leaf
    if isinstance(node, dict):
        children = [(key, _reader(node[key])) for key in sorted(node)]

        def read_dict(tree: Nested, out: Leaves) -> bool:
            if not isinstance(tree, dict) or len(tree) != len(children):
                return False
            return all(key in tree and read(tree[key], out) for key, read in children)

        return read_dict
    number = len(node)
    if all(isinstance(child, ArraySpec) for child in node):

        def read_leaves(tree: Nested, out: Leaves) -> bool:
            if not isinstance(tree, list | tuple) or len(tree) != number:
                return False
            out.extend(tree)
            return True

        return read_leaves
    readers = [_reader(child) for child in node]

    def read_list(tree: Nested, out: Leaves) -> bool:
        if not isinstance(tree, list | tuple) or len(tree) != number:
            return False
        return all(read(child, out) for read, child in zip(readers, tree, strict=True))

    return read_list


def _builder(node: Nested) -> Callable[[Iterator[Any]], Nested]:
    """Return a function that takes a tree's leaves in the fixed order and rebuilds the tree."""
    if isinstance(node, ArraySpec):
        return next
    if isinstance(node, dict):
        pairs = [(key, _builder(node[key])) for key in sorted(node)]
        return lambda leaves: {key: build(leaves) for key, build in pairs}
    kind = type(node)
    builders = [_builder(child) for child in node]
    if hasattr(kind, "_fields"):
        return lambda leaves: kind(*[build(leaves) for build in builders])
    return lambda leaves: kind([build(leaves) for build in builders])
