"""A policy's observations as they come over the wire: cast, padded, of values that there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from bray_actor.policy.agreed_spaces import AgreedSpaces
from bray_actor.policy.set_padding import has_sets, pad_sets
from bray_core import json_fit, nested
from bray_core.errors import ServiceError, SpecError
from bray_core.nested import ArraySpec, Nested
from bray_core.spaces import LeafSpace, Spaces

_WHOLE = "observation"
_PLAIN = (int, float, bool)
"""Kinds of a plain number of the codec, which simulators in other languages send."""


class _Category(NamedTuple):
    """A leaf of choices, each numbered from 0."""

    path: str
    keys: tuple[Any, ...]
    """Way to the leaf in a nested observation."""
    most: Any
    """Highest number of each choice, in the leaf's shape."""


class ObservationReader:
    """Reads observations of sessions; one serves all sessions of a policy.

    Args:
        spaces: What the policy sees and may do, in the words of `bray_core.spaces`; None: nobody
            says it.

    Raises:
        ConfigError: `spaces` is no description of spaces.
    """

    def __init__(self, spaces: Mapping[str, Any] | None) -> None:
        parsed = None if spaces is None else Spaces.parse("policy", spaces)
        space: Nested = {} if parsed is None else parsed.observation
        self.spaces = AgreedSpaces(parsed)
        """What sessions that tell their spaces are compared with."""
        self._sets = space if has_sets(space) else {}
        self._categories = _categories(space, (), _WHOLE)

    def arrays(self, observation: Nested, spec: Nested, *, is_json: bool) -> Nested:
        """Return an observation as arrays of what the model takes.

        Args:
            observation: What `bray_core.json_body.read` gave, which has no dtypes; or what the
                codec gave, where only plain numbers, such as a choice, become arrays. Its dicts are
                changed.
            spec: Nested `ArraySpec` of the model's input.
            is_json: Whether it came in JSON.

        Raises:
            ServiceError: `bad_request`: it does not fit; the message names the leaf.
        """
        try:
            if is_json:
                return json_fit.fit(pad_sets(observation, self._sets, _WHOLE), spec, _WHOLE)
            return _filled(observation, spec, _WHOLE)
        except SpecError as error:
            raise ServiceError("bad_request", str(error)) from error

    def check(self, observation: Nested) -> None:
        """Refuse numbers that a category does not have: a network would take them for others.

        Leaves of another form than the space's are left to the model, which names them.

        Raises:
            ServiceError: `bad_request`: names the leaf, and the numbers that there are.
        """
        for one in self._categories:
            value: Any = observation
            try:
                for key in one.keys:
                    value = value[key]
            except (KeyError, IndexError, TypeError):
                continue
            numbers = np.asarray(value)
            if numbers.shape != one.most.shape or numbers.dtype.kind not in "iu":
                continue
            wrong = (numbers < 0) | (numbers > one.most)
            if wrong.any():
                first = int(np.argmax(wrong))
                raise ServiceError(
                    "bad_request",
                    f"{one.path}: expected whole numbers from 0 to {one.most.reshape(-1)[first]}, "
                    f"got {numbers.reshape(-1)[first]}",
                )


def _filled(tree: Nested, spec: Nested, path: str) -> Nested:
    kind = type(tree)
    if kind in _PLAIN and isinstance(spec, ArraySpec):
        return json_fit.fit(tree, spec, path)
    if kind in (list, tuple) and isinstance(spec, ArraySpec):
        raise SpecError(f"{path}: expected {spec}, got a list: send an array of the codec, or JSON")
    if kind is dict and isinstance(spec, dict):
        for name, value in tree.items():
            if type(value) is not np.ndarray and name in spec:
                tree[name] = _filled(value, spec[name], nested.join(path, name))
    elif kind is list and isinstance(spec, list | tuple):
        pairs = enumerate(zip(tree, spec, strict=False))
        tree[: len(spec)] = [_filled(one, child, f"{path}[{n}]") for n, (one, child) in pairs]
    return tree


def _categories(space: Nested, keys: tuple[Any, ...], path: str) -> list[_Category]:
    if isinstance(space, LeafSpace):
        if space.kind != "category":
            return []
        return [_Category(path, keys, np.reshape(np.asarray(space.sizes) - 1, space.shape))]
    if isinstance(space, dict):
        parts = [(name, nested.join(path, name), child) for name, child in space.items()]
    else:
        parts = [(number, f"{path}[{number}]", child) for number, child in enumerate(space)]
    return [one for key, name, child in parts for one in _categories(child, (*keys, key), name)]
