"""Inputs that show what a network does: rows that differ, in every input."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bray_core import nested
from bray_core.nested import Nested
from bray_model.signature import Run, resize
from bray_model.tree_spec import Leaf

_LIMITS = (256, 16, 2)
"""Integers are drawn below these, from the first that a network takes: they may be pixels, or
indices of a table that ends somewhere."""


def trial_inputs(
    run: Run, example: tuple[Nested, ...], rows: int, seed: int = 0
) -> tuple[Nested, ...]:
    """Return inputs `[rows, ...]`: normal floats, and integers as large as the network takes.

    Where it takes none of those tried, integers are drawn from the example.

    Args:
        run: the network.
        example: inputs `[B, ...]` that it takes.
        rows: how many to return.
        seed: seed of the numbers drawn.
    """
    example = resize(example, rows)
    for inputs in _drawn(example, seed):
        try:
            run(inputs)
        except Exception:  # noqa: BLE001  an index beyond a table: the network's own error
            continue
        return inputs
    return _filled(example, seed, None)


def _drawn(example: tuple[Nested, ...], seed: int) -> Iterator[tuple[Nested, ...]]:
    for limit in _LIMITS:
        yield _filled(example, seed, limit)


def _filled(example: tuple[Nested, ...], seed: int, limit: int | None) -> tuple[Nested, ...]:
    rng = np.random.default_rng(seed)

    def draw(leaf: Leaf) -> Leaf:
        if leaf.dtype.kind == "f":
            return np.asarray(rng.standard_normal(leaf.shape), leaf.dtype)
        if leaf.size == 0 or leaf.dtype.kind == "c":
            return leaf
        if leaf.dtype.kind == "b":
            return np.asarray(rng.integers(2, size=leaf.shape), leaf.dtype)
        if limit is None:
            return np.asarray(rng.choice(leaf.reshape(-1), leaf.shape))
        below = min(limit, np.iinfo(leaf.dtype).max)
        return np.asarray(rng.integers(below, size=leaf.shape), leaf.dtype)

    inputs: tuple[Nested, ...] = nested.map(draw, example)
    return inputs
