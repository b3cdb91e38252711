"""Between what a simulator says and takes, and what an actor does: choices from 0 on, arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bray_core import nested
from bray_core.errors import SpecError
from bray_core.nested import Nested
from bray_core.spaces import LeafSpace


def to_observation(space: Nested, value: Any, path: str = "observation") -> Nested:
    """Return an observation as arrays of its space, as a gamecore sends it.

    Args:
        space: nested `LeafSpace`s.
        value: what an environment returned: numbers, arrays, dicts, tuples or lists.
        path: where it stands, for messages.

    Raises:
        SpecError: the value has another structure; names the place.
    """
    if isinstance(space, LeafSpace) and space.kind == "set":
        return _to_set(space, value, path)
    if isinstance(space, LeafSpace):
        try:
            array = np.asarray(value)
        except ValueError as error:  # rows of several lengths
            raise SpecError(f"{path}: expected {space}, got {type(value).__name__}") from error
        if array.dtype.kind not in "biuf" or array.shape != space.shape:
            raise SpecError(f"{path}: expected {space}, got {array.dtype} {array.shape}")
        if space.kind == "category":
            array = array - np.reshape(space.start, space.shape if space.start else ())
        return array.astype(space.dtype)
    if isinstance(space, dict):
        if not isinstance(value, Mapping) or not space.keys() <= value.keys():
            got = sorted(value) if isinstance(value, Mapping) else type(value).__name__
            raise SpecError(f"{path}: expected the keys {sorted(space)}, got {got}")
        return {
            key: to_observation(child, value[key], nested.join(path, key))
            for key, child in space.items()
        }
    if not isinstance(value, list | tuple) or len(value) != len(space):
        raise SpecError(f"{path}: expected {len(space)} parts, got {type(value).__name__}")
    parts = zip(space, value, strict=True)
    return [to_observation(child, one, f"{path}[{i}]") for i, (child, one) in enumerate(parts)]


def _to_set(space: LeafSpace, value: Any, path: str) -> Nested:
    """Return the members of a set as `[N, F + 1]`, where the last column is 1 for each of them.

    Raises:
        SpecError: there are too many, or a member has another number of numbers.
    """
    most, width = space.shape
    try:
        array = np.asarray(value)
    except ValueError:  # members of several lengths
        array = np.asarray(None)
    if array.shape == space.shape and array.dtype.kind in "biuf":
        return array.astype(space.dtype)  # as a gamecore sends it
    rows = np.zeros(space.shape, space.dtype)
    if array.shape[:1] == (0,):
        return rows
    if not array.ndim or array.dtype.kind not in "biuf" or array[0].size != width - 1:
        raise SpecError(
            f"{path}: expected {space} each, got {type(value).__name__}: give each member as "
            "gymnasium.spaces.flatten of its space makes it"
        )
    if len(array) > most:
        raise SpecError(f"{path}: expected {space}, got {len(array)} members")
    rows[: len(array), :-1] = array.reshape(len(array), -1)
    rows[: len(array), -1] = 1
    return rows


def to_action(space: Nested, answer: Nested) -> Any:
    """Return an actor's answer as the action that an environment takes.

    A single choice is a number of numpy, several parts in order are a tuple; reals are an array, be
    it of no dimensions, and lie within their bounds.

    Args:
        space: nested `LeafSpace`s.
        answer: nested arrays, choices from 0 on.
    """
    if isinstance(space, dict):
        assert isinstance(answer, dict)
        return {key: to_action(child, answer[key]) for key, child in space.items()}
    if not isinstance(space, LeafSpace):
        assert isinstance(answer, list | tuple)
        return tuple(to_action(child, one) for child, one in zip(space, answer, strict=True))
    array = np.asarray(answer).reshape(space.shape)
    if space.kind == "category":
        array = array + np.reshape(space.start, space.shape if np.ndim(space.start) else ())
    elif space.kind != "binary":
        low, high = space.bounds()
        array = np.clip(array, low, high)
    array = np.asarray(array, space.dtype)
    return array[()] if space.kind == "category" else array
