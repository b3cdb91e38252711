"""Sets of members that came in JSON, as the arrays of a fixed size that a policy takes."""

from __future__ import annotations

from typing import Any

import numpy as np

from bray_core import nested
from bray_core.errors import SpecError
from bray_core.nested import Nested
from bray_core.spaces import LeafSpace


def has_sets(space: Nested) -> bool:
    """Return whether there is a set somewhere in nested `LeafSpace`s."""
    return any(leaf.kind == "set" for _, leaf in nested.items(space))


def pad_sets(tree: Nested, space: Nested, path: str) -> Nested:
    """Return a tree whose sets are padded: members in rows, then zeros, and a last column of flags.

    A set of N members at most, of F numbers each, comes as the list of its members, `[K, F]`, and
    becomes `[N, F + 1]`, 1 in the last column of a member; one of `[N, F + 1]` stays as it is. What
    else does not fit is left to `json_fit.fit`, which says so.

    Args:
        tree: Nested arrays and numbers, from what `bray_core.json_body.read` gave.
        space: Nested `LeafSpace`s.
        path: Beginning of the paths of leaves in messages, such as `observation`.

    Raises:
        SpecError: A set has too many members, or members of other lengths; names the leaf.
    """
    if isinstance(space, LeafSpace):
        return _padded(tree, space, path) if space.kind == "set" else tree
    if isinstance(space, dict):
        if not isinstance(tree, dict):
            return tree
        return {
            key: pad_sets(child, space[key], nested.join(path, key)) if key in space else child
            for key, child in tree.items()
        }
    if not isinstance(tree, list) or len(tree) != len(space):
        return tree
    pairs = enumerate(zip(tree, space, strict=True))
    return [pad_sets(child, one, f"{path}[{index}]") for index, (child, one) in pairs]


def _padded(value: Any, space: LeafSpace, path: str) -> Any:
    most, width = space.shape
    members = np.zeros((0, width - 1)) if isinstance(value, list) and not value else value
    if not isinstance(members, np.ndarray) or members.shape == space.shape:
        return members
    if not members.size and members.ndim == 1:
        members = members.reshape(0, width - 1)
    if members.ndim != 2 or members.shape[1] != width - 1 or len(members) > most:
        raise SpecError(
            f"{path}: expected {space}, a list for each member, got numbers of shape "
            f"{members.shape}"
        )
    rows = np.zeros(space.shape, np.float32)
    rows[: len(members), :-1] = members
    rows[: len(members), -1] = 1
    return rows
