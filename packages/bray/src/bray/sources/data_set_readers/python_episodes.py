"""Episodes that a function of the user's returns, as a data set to learn from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bray.sources import demonstrations
from bray.sources.data_set_readers.minari_episodes import returns_of
from bray_core import nested
from bray_core.action_vector import ActionVector
from bray_core.errors import ConfigError
from bray_core.nested import Nested
from bray_core.process.user_modules import find_named_code

_KEYS = ("observation", "action", "reward")


class PythonEpisodes:
    """Episodes as mappings of arrays, one beside the other.

    An episode of n steps has `observation` `[n + 1, …]`, the last one after the last step,
    `action` `[n, …]` with choices from 0 on, `reward` `[n]`, and `terminated`, whether its last
    step ended the task; it is false where it is absent: the episode was cut.

    Args:
        name: `module:function` or `file.py:function`, called without arguments; it returns a
            sequence of episodes, the same in every process.
        actions: turns actions as the environment takes them into arrays.
        gamma: discount per step.

    Raises:
        ConfigError: there is no such function, or it returns something else.
    """

    def __init__(self, name: str, actions: ActionVector, gamma: float) -> None:
        function = find_named_code("data set", name, "module:function or file.py:function")
        self._name = name
        found = function()
        if not isinstance(found, Iterable):
            raise ConfigError(
                f"data set: {name}: expected a sequence of episodes, got {type(found).__name__}"
            )
        self._episodes = list(found)
        self._actions = actions
        self._gamma = gamma
        self.num_units = len(self._episodes)
        if not self._episodes:
            raise ConfigError(f"data set: {name}: expected one episode or more, got none")
        for unit in range(self.num_units):
            self._check(unit)

    def _check(self, unit: int) -> None:
        episode: Any = self._episodes[unit]
        if not isinstance(episode, Mapping) or not set(_KEYS) <= set(episode):
            got = sorted(episode) if isinstance(episode, Mapping) else type(episode).__name__
            raise ConfigError(
                f"data set: {self.describe(unit)}: expected a mapping of {', '.join(_KEYS)}, got "
                f"{got}"
            )
        terminated = episode.get("terminated", False)
        if np.ndim(terminated) or terminated not in (False, True):
            raise ConfigError(
                f"data set: {self.describe(unit)}: expected terminated to be true or false, "
                f"whether the last step ended the task, got {terminated!r:.100}"
            )
        try:
            arrays = {key: _arrays(episode[key], key) for key in _KEYS}
        except ValueError as error:
            raise ConfigError(f"data set: {self.describe(unit)}: {error}") from error
        if np.ndim(arrays["reward"]) != 1:
            raise ConfigError(
                f"data set: {self.describe(unit)}: reward: expected one number for each step, got "
                f"an array of the shape {list(np.shape(arrays['reward']))}"
            )
        episode = self._episodes[unit] = {**episode, **arrays}
        steps = len(arrays["reward"])
        for key, count in (("observation", steps + 1), ("action", steps)):
            for path, leaf in nested.items(episode[key]):
                if len(np.atleast_1d(leaf)) != count:
                    raise ConfigError(
                        f"data set: {self.describe(unit)}: expected {count} of {path or key} for "
                        f"{steps} rewards, got {len(np.atleast_1d(leaf))}"
                    )

    def steps(self, unit: int, leaves: Sequence[str]) -> Nested | None:
        """Return the steps of an episode."""
        episode = self._episodes[unit]
        reward = np.asarray(episode["reward"], np.float32)
        if not len(reward):
            return None
        terminated = bool(episode.get("terminated", False))
        seen = nested.map(demonstrations.narrow, episode["observation"])
        discount = np.full(len(reward), self._gamma, np.float32)
        discount[-1] = 0.0 if terminated else self._gamma
        rows = {
            "observation": nested.map(lambda leaf: leaf[:-1], seen),
            "next_observation": nested.map(lambda leaf: leaf[1:], seen),
            "action": self._actions.flatten(episode["action"]),
            "reward": reward,
            "discount": discount,
            "return": returns_of(reward, self._gamma, is_known=terminated),
        }
        return {name: rows[name] for name in leaves}

    def describe(self, unit: int) -> str:
        """Return the function and the number of the episode."""
        return f"{self._name} episode {unit}"

    def mean_return(self) -> float:
        """Return the mean sum of rewards of the episodes."""
        return float(np.mean([np.sum(episode["reward"]) for episode in self._episodes]))


def _arrays(value: Any, path: str) -> Nested:
    """Return nested arrays: lists of numbers are arrays.

    Raises:
        ValueError: there are no numbers, or the lists have several lengths; names the place.
    """
    if isinstance(value, Mapping):
        return {name: _arrays(one, nested.join(path, name)) for name, one in value.items()}
    if isinstance(value, tuple):
        return tuple(_arrays(one, f"{path}[{at}]") for at, one in enumerate(value))
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{path}: expected lists of one length: {error}") from error
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{path}: expected numbers, got {array.dtype}: {value!r:.60}")
    return array
