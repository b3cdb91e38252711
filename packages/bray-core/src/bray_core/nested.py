"""Nested arrays: dicts, lists and tuples of arrays, walked in one fixed order.

Dicts are walked in the sorted order of their keys, so that equal trees have equal layouts
whatever the order in which they were written. Errors name the leaf: `observation/units[3]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

import numpy as np

from bray_core.errors import SpecError

Nested: TypeAlias = Any
"""`dict[str, Nested] | list[Nested] | tuple[Nested, ...] | leaf`; a leaf is anything else."""


_MORE_LEAVES = 1000
"""Leaves beyond those expected that are named one by one, though a client may send any number."""


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """The dtype and shape of one leaf."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape}"


def join(path: str, key: str) -> str:
    """Return the path of a dict's value, which lies at `path`."""
    return f"{path}/{key}" if path else key


def items(tree: Nested, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield `(path, leaf)` in the fixed order.

    Raises:
        SpecError: A dict has a key that is no string.
    """
    if isinstance(tree, dict):
        for key in tree:
            if not isinstance(key, str):
                raise SpecError(f"{path or 'tree'}: dict keys must be str, got {key!r}")
        for key in sorted(tree):
            yield from items(tree[key], join(path, key))
    elif isinstance(tree, list | tuple):
        for index, child in enumerate(tree):
            yield from items(child, f"{path}[{index}]")
    else:
        yield path, tree


def flatten(tree: Nested) -> dict[str, Any]:
    """Return the leaves by path, in the fixed order. A bare leaf has the path `""`."""
    return dict(items(tree))


def unflatten(like: Nested, leaves: Iterable[Any]) -> Nested:
    """Rebuild the structure of `like` from leaves given in the fixed order.

    Raises:
        SpecError: There are too few or too many leaves.
    """
    iterator = iter(leaves)

    def build(node: Nested) -> Nested:
        if isinstance(node, dict):
            return {key: build(node[key]) for key in sorted(node)}
        if isinstance(node, tuple) and hasattr(node, "_fields"):
            return type(node)(*(build(child) for child in node))
        if isinstance(node, list | tuple):
            return type(node)(build(child) for child in node)
        try:
            return next(iterator)
        except StopIteration:
            raise SpecError("unflatten: fewer leaves than the structure has") from None

    # A generator inside build() would swallow StopIteration; build() raises SpecError instead.
    tree = build(like)
    if next(iterator, _END) is not _END:
        raise SpecError("unflatten: more leaves than the structure has")
    return tree


_END = object()


def map(fn: Callable[..., Any], tree: Nested, *rest: Nested) -> Nested:
    """Apply `fn` leaf by leaf to one or more trees of the same structure.

    Raises:
        SpecError: The structures differ; names the path.
    """
    first = flatten(tree)
    others = [flatten(other) for other in rest]
    for other in others:
        _same_paths(first, other)
    return unflatten(tree, [fn(leaf, *(o[path] for o in others)) for path, leaf in first.items()])


def _same_paths(expected: dict[str, Any], got: dict[str, Any]) -> None:
    for path in expected:
        if path not in got:
            raise SpecError(f"{path or 'tree'}: missing; got the leaves {sorted(got)}")
    for path in got:
        if path not in expected:
            raise SpecError(f"{path or 'tree'}: unexpected; expected the leaves {sorted(expected)}")


def spec(tree: Nested) -> Nested:
    """Replace each leaf by its `ArraySpec`.

    Raises:
        SpecError: A leaf is no numpy array.
    """

    def leaf_spec(path: str, leaf: Any) -> ArraySpec:
        if not isinstance(leaf, np.ndarray | np.generic):
            raise SpecError(
                f"{path or 'tree'}: expected a numpy array, got {type(leaf).__name__}: "
                "wrap it in np.asarray"
            )
        return ArraySpec(leaf.dtype, leaf.shape)

    return unflatten(tree, [leaf_spec(path, leaf) for path, leaf in items(tree)])


def check(
    tree: Nested, expected: Nested, lead: tuple[int | None, ...] = (), name: str = ""
) -> None:
    """Check that `tree` has the structure, dtypes and shapes of the spec tree `expected`.

    Args:
        tree: Nested arrays, each leaf `[*lead, *shape]`.
        expected: Nested `ArraySpec`.
        lead: Sizes of the dimensions before those of the spec; None fits any size.
        name: Word before the path in messages, such as `segment`.

    Raises:
        SpecError: A leaf does not fit; names its path, what was expected and what came.
    """
    want = dict(items(expected, name))
    most = len(want) + _MORE_LEAVES
    got = dict(islice(items(tree, name), most + 1))
    if len(got) > most:
        few = f"expected the leaves {list(want)[:20]}"
        raise SpecError(f"{name or 'tree'}: {few}, got more than {most}")
    _same_paths(want, got)
    for path, leaf_spec in want.items():
        leaf = got[path]
        shape = (*("any" if n is None else n for n in lead), *leaf_spec.shape)
        fits = (
            isinstance(leaf, np.ndarray | np.generic)
            and leaf.dtype == leaf_spec.dtype
            and len(leaf.shape) == len(shape)
            and all(w in ("any", g) for w, g in zip(shape, leaf.shape, strict=True))
        )
        if not fits:
            wanted = f"({', '.join(str(n) for n in shape)}{',' if len(shape) == 1 else ''})"
            has = f"{leaf.dtype} {leaf.shape}" if hasattr(leaf, "dtype") else type(leaf).__name__
            cure = ""
            if has.startswith(">"):  # numpy's mark of a big-endian dtype
                cure = f": its bytes are big-endian, .astype('{leaf_spec.dtype}') turns them"
            raise SpecError(
                f"{path or 'tree'}: expected {leaf_spec.dtype} {wanted}, got {has}{cure}"
            )


def stack(trees: Sequence[Nested], axis: int = 0) -> Nested:
    """Stack trees of one structure along a new axis."""
    _some("stack", trees)
    return map(lambda *leaves: np.stack(leaves, axis), trees[0], *trees[1:])


def concat(trees: Sequence[Nested], axis: int = 0) -> Nested:
    """Join trees of one structure along an existing axis."""
    _some("concat", trees)
    return map(lambda *leaves: np.concatenate(leaves, axis), trees[0], *trees[1:])


def split(tree: Nested, sizes: Sequence[int], axis: int = 0) -> list[Nested]:
    """Split along `axis` into views of the given sizes: the inverse of `concat`.

    Raises:
        SpecError: The sizes do not add up to a leaf's size.
    """
    total = sum(sizes)
    for path, leaf in items(tree):
        if leaf.shape[axis] != total:
            raise SpecError(
                f"{path or 'tree'}: sizes add up to {total}, got {leaf.shape[axis]} on axis {axis}"
            )
    cuts = np.cumsum(sizes)[:-1]
    parts = [np.split(leaf, cuts, axis) for _, leaf in items(tree)]
    return [unflatten(tree, [part[i] for part in parts]) for i in range(len(sizes))]


def _some(what: str, trees: Sequence[Nested]) -> None:
    if not trees:
        raise SpecError(f"{what}: expected at least one tree, got none")
