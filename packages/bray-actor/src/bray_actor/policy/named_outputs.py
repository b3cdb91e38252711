"""Reads a policy's outputs by their names, and refuses what cannot be decoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bray_core.errors import SpecError
from bray_core.nested import Nested


def heads_of(outputs: Nested, number: int) -> Sequence[Any]:
    """Return the logits of so many heads.

    Raises:
        SpecError: the outputs are not a list, or its length differs.
    """
    logits = outputs.get("logits") if isinstance(outputs, dict) else None
    if not isinstance(logits, list | tuple) or len(logits) != number:
        got = f"{len(logits)}" if isinstance(logits, list | tuple) else type(logits).__name__
        raise SpecError(f"model output logits: expected a list of {number} heads, got {got}")
    return logits


def leaf_of(outputs: Nested, name: str, shape: tuple[int | None, ...]) -> Any:
    """Return a leaf of floats; None in `shape` stands for any size."""
    leaf = outputs.get(name) if isinstance(outputs, dict) else None
    dtype, got = getattr(leaf, "dtype", None), getattr(leaf, "shape", ())
    if dtype is None or dtype.kind != "f" or not _fits(got, shape):
        sizes = ", ".join("any" if size is None else str(size) for size in shape)
        wanted = f"({sizes},)" if len(shape) == 1 else f"({sizes})"
        has = f"{dtype} {got}" if dtype is not None else "nothing"
        raise SpecError(f"model output {name}: expected float32 {wanted}, got {has}")
    return leaf


def _fits(got: tuple[int, ...], shape: tuple[int | None, ...]) -> bool:
    return got == shape or (
        len(got) == len(shape) and all(w in (None, g) for g, w in zip(got, shape, strict=True))
    )


def is_autoregressive(outputs: Nested) -> bool:
    """Return whether later choices depend on earlier ones."""
    return isinstance(outputs, dict) and "conditional" in outputs


def order_of(order: npt.NDArray[Any], number: int) -> list[int]:
    """Return the order in which so many choices are drawn.

    Raises:
        SpecError: it does not hold each of them once.
    """
    indices: list[int] = np.asarray(order).tolist()
    if sorted(indices) != list(range(number)):
        raise SpecError(f"model output order: expected each of 0 to {number - 1} once, got {order}")
    return [int(index) for index in indices]
