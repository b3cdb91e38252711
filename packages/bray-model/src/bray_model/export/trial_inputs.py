"""Inputs that networks are tried with: drawn at random, or read from a file of the user's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bray_core import nested
from bray_core.errors import ConfigError
from bray_core.nested import ArraySpec, Nested
from bray_model.signature import Forward, Signature, resize
from bray_model.tree_spec import Leaf

_LIMITS = (256, 16, 2)
"""Integers are drawn below these, from the first that a network takes: they may be pixels, or
indices of a table that ends somewhere."""
_BATCH_ROWS = 64


def trial_inputs(
    run: Forward, example: tuple[Nested, ...], rows: int, seed: int = 0
) -> tuple[Nested, ...]:
    """Return inputs `[rows, ...]`: normal floats, and integers as large as the network takes.

    Where it takes none of those tried, integers are drawn from the example.

    Args:
        run: Forward of the network.
        example: Inputs `[B, ...]` that it takes.
        rows: Number of rows to return.
        seed: Seed of the numbers drawn.
    """
    example = resize(example, rows)
    for inputs in _drawn(example, seed):
        try:
            run(inputs)
        except Exception:  # noqa: BLE001  an index beyond a table: the network's own error
            continue
        return inputs
    return _filled(example, seed, None)


def random_inputs(
    signature: Signature, rows: int, seed: int = 0, below: int = 1
) -> tuple[Nested, ...]:
    """Return inputs `[rows, ...]`: normal floats, and integers from 0 up to, without, `below`.

    By default the integers are zeros, since they may be indices.
    """
    rng = np.random.default_rng(seed)

    def draw(spec: ArraySpec) -> Any:
        shape = (rows, *spec.shape)
        if spec.dtype.kind == "f":
            return rng.standard_normal(shape).astype(spec.dtype)
        limit = min(below, 2 if spec.dtype.kind == "b" else np.iinfo(spec.dtype).max)
        return rng.integers(limit, size=shape).astype(spec.dtype)

    inputs: tuple[Nested, ...] = nested.map(draw, signature.inputs)
    return inputs


def read_calibration(file: Path, signature: Signature) -> list[tuple[Nested, ...]]:
    """Read a model's inputs from an npz of arrays `[N, ...]` by leaf path, in batches.

    Raises:
        ConfigError: The file is no npz of plain arrays, or has other names or numbers of rows;
            names what is missing. Dtypes and shapes are left to `quantize`.
    """
    tree = signature.input_tree
    try:
        with np.load(file, allow_pickle=False) as content:
            arrays = dict(content)
    except (OSError, ValueError, TypeError, AttributeError, EOFError) as error:
        raise ConfigError(f"--calibration: {file}: not an npz of arrays ({error})") from error
    if sorted(arrays) != sorted(tree.paths):
        raise ConfigError(
            f"--calibration: {file}: expected the arrays {sorted(tree.paths)}, got {sorted(arrays)}"
        )
    rows = {path: array.shape[0] if array.ndim else 0 for path, array in arrays.items()}
    if len(set(rows.values())) > 1 or not all(rows.values()):
        raise ConfigError(f"--calibration: {file}: expected N rows in every array, got {rows}")
    return [
        tree.build([arrays[path][start : start + _BATCH_ROWS] for path in tree.paths])
        for start in range(0, rows[tree.paths[0]], _BATCH_ROWS)
    ]


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
