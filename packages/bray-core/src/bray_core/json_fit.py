"""Casts what came in JSON to the dtypes and shapes that a policy expects: JSON knows neither."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bray_core import nested
from bray_core.errors import SpecError
from bray_core.nested import ArraySpec, Nested

_EXACT = 2**53
"""Largest integer up to which a float64 holds each."""


def fit(tree: Nested, spec: Nested, path: str = "") -> Nested:
    """Return a tree with the arrays of a spec, from what `bray_core.json_body.read` gave.

    A cast changes no number but by rounding to a narrower float: a fraction does not become an
    integer, and nothing wraps around. Lists stand for tuples too, 0 and 1 for booleans, and false
    and true for numbers.

    Args:
        tree: Nested arrays, numbers and booleans.
        spec: Nested `ArraySpec`.
        path: Beginning of the paths of leaves in messages, such as `observation`.

    Raises:
        SpecError: A leaf does not fit; names its path, what was expected and what came.
    """
    if isinstance(spec, ArraySpec):
        return _leaf(tree, spec, path or "tree")
    if isinstance(spec, dict):
        return _dict(tree, spec, path)
    rows = tree if isinstance(tree, list) else tree if _is_array(tree) and tree.ndim else None
    if rows is None or len(rows) != len(spec):
        raise SpecError(f"{path or 'tree'}: expected a list of {len(spec)}, got {_what(tree)}")
    fitted = [fit(rows[i], child, f"{path}[{i}]") for i, child in enumerate(spec)]
    if hasattr(spec, "_fields"):
        return type(spec)(*fitted)
    return type(spec)(fitted)


def _dict(tree: Nested, spec: dict[str, Nested], path: str) -> dict[str, Nested]:
    if not isinstance(tree, dict):
        keys = sorted(spec)
        raise SpecError(f"{path or 'tree'}: expected an object with {keys}, got {_what(tree)}")
    for key in spec:
        if key not in tree:
            got = sorted(tree)[:20]
            raise SpecError(f"{nested.join(path, key)}: missing; got the keys {got}")
    for key in tree:
        if key not in spec:
            shown = nested.join(path, key[:100])
            raise SpecError(f"{shown}: unexpected; expected the keys {sorted(spec)}")
    return {key: fit(tree[key], child, nested.join(path, key)) for key, child in spec.items()}


def _leaf(value: Any, spec: ArraySpec, path: str) -> npt.NDArray[Any]:
    if not _is_array(value) and type(value) not in (bool, int, float):
        raise SpecError(f"{path}: expected {spec}, got {_what(value)}")
    array = np.asarray(value)
    if array.shape != spec.shape and not _are_both_empty(array, spec):
        raise SpecError(f"{path}: expected {spec}, got {_what(value)}")
    if spec.dtype.kind not in "biuf":
        raise SpecError(f"{path}: {spec.dtype} is not offered in JSON: send bray's codec")
    if spec.dtype.kind == "f":
        cast = _as_floats(array, spec.dtype)
    elif array.dtype.kind == "b":
        cast = array.astype(spec.dtype)
    else:
        cast = _as_integers(array, spec.dtype)
    if isinstance(cast, str):
        raise SpecError(f"{path}: expected {spec}, got {cast}")
    return cast.reshape(spec.shape)


def _are_both_empty(array: npt.NDArray[Any], spec: ArraySpec) -> bool:
    """Return whether the first 0 of a shape ends it in JSON: `[]` is of the shape (0, 2) too."""
    return not array.size and array.shape == spec.shape[: array.ndim]


def _as_floats(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any] | str:
    with np.errstate(over="ignore"):
        cast = array.astype(dtype)
    return cast if np.isfinite(cast).all() else f"a number out of the range of {dtype}"


def _as_integers(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any] | str:
    """Cast numbers to integers or booleans; returns what is wrong with them where they are none."""
    if array.size:
        least, most = (0, 1) if dtype.kind == "b" else _range(dtype)
        if array.dtype.kind == "f":
            if (array != np.floor(array)).any():
                return "a fraction"
            least, most = max(least, -_EXACT), min(most, _EXACT)
        if int(array.min()) < least or int(array.max()) > most:
            return f"a number that is not between {least} and {most}"
    return array.astype(dtype)


def _range(dtype: np.dtype[Any]) -> tuple[int, int]:
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max)


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray | np.generic)


def _what(value: Any) -> str:
    """Say what came, in JSON's words."""
    if _is_array(value):
        kind = "booleans" if value.dtype.kind == "b" else "numbers"
        return f"{kind} of shape {value.shape}" if value.ndim else "one number"
    if isinstance(value, list):
        return _what_list(value)
    names = {bool: "a boolean", int: "one number", float: "one number", dict: "an object"}
    return "null" if value is None else names.get(type(value), "a string")


def _what_list(items: list[Any]) -> str:
    """Say why a list is no array."""
    for item in items:
        if isinstance(item, list):
            return _what_list(item)
        if item is None or isinstance(item, str | dict):
            return f"a list with {_what(item)}"
    if any(_is_array(item) for item in items):
        return "lists of unequal lengths"
    return "booleans beside numbers"
