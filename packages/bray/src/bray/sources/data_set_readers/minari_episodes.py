"""Episodes of Minari as a data set to learn from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bray.sources import demonstrations
from bray_buffer.sources.minari import load_minari
from bray_core import nested
from bray_core.action_vector import ActionVector
from bray_core.nested import Nested
from bray_core.spaces import LeafSpace, Spaces


class MinariEpisodes:
    """Episodes of a Minari data set that is on this machine.

    Args:
        name: name of the data set.
        spaces: what the environment shows and takes.
        gamma: discount per step.
    """

    def __init__(self, name: str, spaces: Spaces, gamma: float) -> None:
        self._data = load_minari(name)
        self._space = spaces.observation
        self._actions = ActionVector(spaces.action, spaces.origin)
        self._gamma = gamma
        self.num_units = len(self._data.episode_indices)

    def _episode(self, unit: int) -> Any:
        (episode,) = self._data.iterate_episodes([self._data.episode_indices[unit]])
        return episode

    def steps(self, unit: int, leaves: Sequence[str]) -> Nested | None:
        """Return the steps of an episode, whose observations are one more than its actions."""
        episode = self._episode(unit)
        reward = np.asarray(episode.rewards, np.float32)
        if not len(reward):
            return None
        seen = nested.map(demonstrations.narrow, _from_0(episode.observations, self._space))
        ended = np.asarray(episode.terminations, bool)
        rows = {
            "observation": nested.map(lambda leaf: leaf[:-1], seen),
            "next_observation": nested.map(lambda leaf: leaf[1:], seen),
            "action": self._actions.flatten(_from_0(episode.actions, self._actions.space)),
            "reward": reward,
            "discount": np.where(ended, 0.0, self._gamma).astype(np.float32),
            "return": returns_of(reward, self._gamma, is_known=bool(ended[-1])),
        }
        return {name: rows[name] for name in leaves}

    def describe(self, unit: int) -> str:
        """Return the data set and the episode."""
        return f"{self._data.id} episode {self._data.episode_indices[unit]}"

    def mean_return(self) -> float:
        """Return the mean sum of rewards of the episodes."""
        sums = [np.sum(self._episode(unit).rewards) for unit in range(self.num_units)]
        return float(np.mean(sums))


def _from_0(values: Nested, space: Nested) -> Nested:
    """Return values whose choices are numbered from 0 on, as they are on the wire."""

    def shifted(leaf: Any, one: LeafSpace) -> Any:
        return np.asarray(leaf) - np.reshape(one.start, one.shape) if one.start else leaf

    return nested.map(shifted, values, space)


def returns_of(reward: Any, gamma: float, *, is_known: bool) -> Any:
    """Return the discounted sums of the rewards to the end; NaN where it went on unseen."""
    found, to_go = np.empty(len(reward), np.float32), 0.0 if is_known else float("nan")
    for at in reversed(range(len(reward))):
        found[at] = to_go = float(reward[at]) + gamma * to_go
    return found
