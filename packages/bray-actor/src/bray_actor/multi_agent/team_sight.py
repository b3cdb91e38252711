"""What one agent sees, as one row of numbers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bray_core import nested
from bray_core.errors import ConfigError
from bray_core.nested import Nested
from bray_core.spaces import LeafSpace, Spaces

MASK = "action_mask"
"""Leaf of an observation that says which actions are allowed."""


class FlatSight:
    """Turns observations into rows: choices become one-hot vectors, all else stays as it is.

    Args:
        spaces: What the agent sees.

    Raises:
        ConfigError: it sees a set, whose size varies, or is told which actions are allowed.
    """

    def __init__(self, spaces: Spaces) -> None:
        leaves = nested.flatten(spaces.observation)
        for path, leaf in leaves.items():
            if leaf.kind == "set" or path.rpartition("/")[2] == MASK:
                what = "a set of varying size" if leaf.kind == "set" else "an action mask"
                raise ConfigError(
                    f"environment: {spaces.origin}: expected observations of a fixed size without "
                    f"masks for a team, got {what} ({path}): train such agents by themselves, with "
                    "ppo or dqn"
                )
        self._leaves: list[LeafSpace] = list(leaves.values())
        self.size = sum(map(_size, self._leaves))
        """Numbers of a row."""

    def row(self, observation: Nested) -> npt.NDArray[np.float32]:
        """Return an observation as a row `[size]`."""
        values = nested.flatten(observation).values()
        parts = [_numbers(leaf, value) for leaf, value in zip(self._leaves, values, strict=True)]
        return np.concatenate(parts)


def _size(leaf: LeafSpace) -> int:
    return sum(leaf.sizes) if leaf.kind == "category" else leaf.num_numbers


def _numbers(leaf: LeafSpace, value: Nested) -> npt.NDArray[np.float32]:
    flat = np.asarray(value).reshape(-1)
    if leaf.kind != "category":
        return flat.astype(np.float32)
    pairs = zip(flat.tolist(), leaf.sizes, strict=True)
    return np.concatenate([np.eye(size, dtype=np.float32)[int(one)] for one, size in pairs])
