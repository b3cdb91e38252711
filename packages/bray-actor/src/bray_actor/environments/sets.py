"""Sets of members: Gymnasium's `Sequence` as arrays of a fixed size, padded and marked.

Imports gymnasium: whoever imports this has it.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from bray_core.errors import ConfigError


class SetBox(spaces.Box):  # type: ignore[misc]
    """Up to N members of F numbers each, float32 `[N, F + 1]`: the last column is 1 for a member.

    Args:
        most: number N of members at most.
        features: numbers F of one member.
    """

    def __init__(self, most: int, features: int) -> None:
        super().__init__(-np.inf, np.inf, (most, features + 1), np.float32)


class PaddedSets(gymnasium.ObservationWrapper[Any, Any, Any]):  # type: ignore[misc]
    """Shows the sets of an observation as arrays of a fixed size, wherever they are nested.

    A member's numbers are those of `gymnasium.spaces.flatten`: a Box flat, a Discrete one-hot.

    Args:
        env: environment whose observation has `Sequence` spaces.
        most: members of a set at most.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], most: int) -> None:
        super().__init__(env)
        self._most = most
        self.observation_space = _padded_space(env.observation_space, most)

    def observation(self, observation: Any) -> Any:
        """Return an observation with arrays in place of its sets.

        Raises:
            ConfigError: a set has more members than there is room for; names it and the setting.
        """
        return _padded(self.env.observation_space, observation, self._most, "observation")


def _padded_space(space: spaces.Space[Any], most: int) -> spaces.Space[Any]:
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: _padded_space(child, most) for key, child in space.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([_padded_space(child, most) for child in space])
    if isinstance(space, spaces.Sequence):
        return SetBox(most, _features(space))
    return space


def _features(space: spaces.Sequence) -> int:
    try:
        return int(spaces.flatdim(space.feature_space))
    except (NotImplementedError, ValueError) as error:
        raise ConfigError(
            f"environment: expected the members of a Sequence to have a fixed size, got "
            f"{space.feature_space}: turn them into arrays in a wrapper "
            "(gymnasium.ObservationWrapper)"
        ) from error


def _padded(space: spaces.Space[Any], value: Any, most: int, path: str) -> Any:
    if isinstance(space, spaces.Dict):
        return {k: _padded(child, value[k], most, f"{path}/{k}") for k, child in space.items()}
    if isinstance(space, spaces.Tuple):
        pairs = enumerate(zip(space, value, strict=True))
        return tuple(_padded(child, v, most, f"{path}[{i}]") for i, (child, v) in pairs)
    if not isinstance(space, spaces.Sequence):
        return value
    members = (
        list(gymnasium.vector.utils.iterate(space.stacked_feature_space, value))
        if (space.stack)
        else list(value)
    )
    if len(members) > most:
        raise ConfigError(
            f"environment: {path}: a set of {len(members)} members, more than "
            f"source.most_members={most}: raise it"
        )
    rows = np.zeros((most, _features(space) + 1), np.float32)
    for row, member in zip(rows, members, strict=False):
        row[:-1] = spaces.flatten(space.feature_space, member)
        row[-1] = 1
    return rows
