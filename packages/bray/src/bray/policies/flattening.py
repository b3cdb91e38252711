"""Observations as vectors: what needs no weights to be read, and masks of actions apart."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from bray_core import nested
from bray_core.action_vector import ActionVector, sizes_of
from bray_core.errors import ConfigError
from bray_core.nested import Nested
from bray_core.spaces import LeafSpace, Spaces

MASK = "action_mask"
"""Key of an observation's mask of allowed actions."""
_SEEN = "observation"


def seen_space(spaces: Spaces) -> Nested:
    """Return the space of what is seen, without the mask.

    Raises:
        ConfigError: there is nothing else, or the mask does not fit the choices.
    """
    space = spaces.observation
    if not isinstance(space, dict) or MASK not in space:
        return space
    sizes = ActionVector(spaces.action, spaces.origin).sizes
    has = sum(leaf.num_numbers for _, leaf in nested.items(space[MASK]))
    if not sizes:
        raise ConfigError(
            f"environment: {spaces.origin}: expected no {MASK} with actions of reals alone, which "
            "have no choice to forbid: leave it out of the observation, or rename it"
        )
    if has != sum(sizes):
        raise ConfigError(
            f"environment: {spaces.origin}: expected {MASK} with a flag for each value of each "
            f"choice of an action, {sum(sizes)} in all, got {has}: mend the mask, or rename it "
            "where it is something else"
        )
    rest = {name: child for name, child in space.items() if name != MASK}
    if not rest:
        raise ConfigError(
            f"environment: {spaces.origin}: an observation of {MASK} alone: let a wrapper show "
            "something beside it, a constant such as Discrete(1) if there is nothing"
        )
    return rest[_SEEN] if set(rest) == {_SEEN} else rest


def split_mask(observation: Nested, space: Nested) -> tuple[Nested, Tensor | None]:
    """Return what is seen, and the mask of the values of all choices `[…, A]` if there is one.

    Args:
        observation: batch of observations, tensors.
        space: observation space of which it is.
    """
    if not isinstance(observation, dict) or MASK not in observation:
        return observation, None
    flags = [
        leaf.reshape(*leaf.shape[: leaf.ndim - len(one.shape)], -1)
        for leaf, one in zip(_leaves(observation[MASK]), _leaves(space[MASK]), strict=True)
    ]
    rest = {name: child for name, child in observation.items() if name != MASK}
    return (
        rest[_SEEN] if set(rest) == {_SEEN} else rest,
        flags[0] if len(flags) == 1 else torch.cat(flags, -1),
    )


def _leaves(tree: Nested) -> list[Nested]:
    return [leaf for _, leaf in nested.items(tree)]


class FlatLeaf:
    """Reads a leaf as a vector: categories one-hot, whole numbers with bounds as shares of them.

    Args:
        leaf: space of the leaf.
    """

    def __init__(self, leaf: LeafSpace) -> None:
        self._rank = len(leaf.shape)
        self._sizes = sizes_of(leaf) if leaf.kind == "category" else ()
        self.size = sum(self._sizes) or leaf.num_numbers
        """Numbers of the vector."""
        self.scale: tuple[float, float] | None = None
        """Lowest value and width of the range of which a value is a share; None: it stays."""
        low, high = leaf.low, leaf.high
        is_whole = np.dtype(leaf.dtype).kind in "iu"
        if is_whole and isinstance(low, float) and isinstance(high, float) and high > low:
            self.scale = low, high - low

    def __call__(self, x: Tensor) -> Tensor:
        """Map values `[…, *shape]` to vectors `[…, size]`, float32."""
        if self._sizes:
            return self._one_hot(x.reshape(*x.shape[: x.ndim - self._rank], -1).long())
        x = x.float()
        if self._rank != 1:
            x = x.reshape(*x.shape[: x.ndim - self._rank], -1)
        if self.scale is not None:
            x = (x - self.scale[0]) / self.scale[1]
        return x

    def _one_hot(self, index: Tensor) -> Tensor:
        columns = [
            one_hot(index[..., k].clamp(0, size - 1), size).float()
            for k, size in enumerate(self._sizes)
        ]
        return columns[0] if len(columns) == 1 else torch.cat(columns, -1)


class Flattening:
    """Reads all leaves of an observation as one vector, in the fixed order of leaves.

    Args:
        space: nested space of what is seen.
    """

    def __init__(self, space: Nested) -> None:
        self._leaves = [FlatLeaf(leaf) for _, leaf in nested.items(space)]
        self.size = sum(leaf.size for leaf in self._leaves)
        """Numbers of the vector."""

    def __call__(self, seen: Nested) -> Tensor:
        """Map observations, leaves `[…, *shape]`, to vectors `[…, size]`, float32."""
        if isinstance(seen, Tensor):
            return self._leaves[0](seen)
        read = [leaf(x) for leaf, (_, x) in zip(self._leaves, nested.items(seen), strict=True)]
        return read[0] if len(read) == 1 else torch.cat(read, -1)


def has_images(spaces: Spaces) -> bool:
    """Return whether something of an observation is an image, for which a network takes longer."""
    return any(leaf.kind == "image" for _, leaf in nested.items(spaces.observation))
