"""Masks of actions that an environment tells in its info, as a part of the observation."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from bray_actor.environments.error_words import RAISED, error_words
from bray_actor.environments.outcomes import check_reset
from bray_core import nested
from bray_core.errors import BrayError, SpecError
from bray_core.process.signal_errors import raise_if_of_signal

MASK = "action_mask"
_ATTEMPTS = 3
_has_mask: dict[str, bool] = {}
"""Whether environments made in one way tell masks: found out once a process."""


def with_action_mask(env: Any, name: str, key: str) -> Any:
    """Return an environment that shows its mask, or itself where it has none to show.

    The first environment of a kind is reset once to see, or a few times where that fails.

    Args:
        env: A Gymnasium environment.
        name: What is played, for messages.
        key: What is the same for environments that are made alike.

    Raises:
        BrayError: the environment cannot be reset; says why.
    """
    if not lacks_mask(env):
        return env
    if key not in _has_mask:
        _has_mask[key] = _tells_mask(env, name)
    return ActionMaskObservation(env) if _has_mask[key] else env


def lacks_mask(env: Any) -> bool:
    """Return whether an environment has choices, and observations without a mask of them."""
    space = env.observation_space
    is_shown = isinstance(space, spaces.Dict) and MASK in space.spaces
    return not is_shown and mask_size(env.action_space) > 0


def _tells_mask(env: Any, name: str) -> bool:
    for attempt in range(_ATTEMPTS):
        try:
            begun = env.reset(seed=attempt)
            check_reset(env.observation_space, begun)
            return MASK in begun[1]
        except RAISED as error:  # the boundary to code of others
            raise_if_of_signal(error)
            last = error
    raise BrayError(
        f"environment: {name}: reset failed {_ATTEMPTS} times, the last time with "
        f"{error_words(last)}: mend the environment"
    ) from last


class ActionMaskObservation(gymnasium.Wrapper[Any, Any, Any, Any]):  # type: ignore[misc]
    """Observations `{"observation", "action_mask"}`: 1 for each action that is allowed.

    Masks of several choices are joined, `[A_1 + A_2 + …]`. Where none is told, or none is allowed,
    as after an end, all are 1.

    Args:
        env: An environment with choices among its actions, and with `info["action_mask"]`.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._size = mask_size(env.action_space)
        self.observation_space = spaces.Dict(
            {"observation": env.observation_space, MASK: spaces.MultiBinary(self._size)}
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._joined(observation, info), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take an action."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._joined(observation, info), reward, terminated, truncated, info

    def _joined(self, observation: Any, info: dict[str, Any]) -> dict[str, Any]:
        return {"observation": observation, MASK: self._mask(info.get(MASK))}

    def _mask(self, told: Any) -> npt.NDArray[np.int8]:
        return joined_mask(told, self._size)


def mask_size(action: Any) -> int:
    """Return the number of flags in the mask of a space's choices: two for each on and off."""
    if isinstance(action, spaces.Discrete):
        return int(action.n)
    if isinstance(action, spaces.MultiDiscrete):
        return int(np.sum(action.nvec))
    if isinstance(action, spaces.MultiBinary):
        return 2 * int(np.prod(action.shape))
    if isinstance(action, spaces.Dict):
        return sum(map(mask_size, action.values()))
    return sum(map(mask_size, action)) if isinstance(action, spaces.Tuple) else 0


def joined_mask(told: Any, size: int) -> npt.NDArray[np.int8]:
    """Return the mask that an environment tells as one array; all ones where none is allowed.

    Args:
        told: A mask, or those of several choices, nested like the action; None allows everything.
        size: Number of flags.

    Raises:
        SpecError: the number of flags differs, or one is neither 0 nor 1.
    """
    if told is None:
        return np.ones(size, np.int8)
    parts = [part for _, part in nested.items(told)]
    flags = np.concatenate([np.reshape(part, -1) for part in parts])
    wrong = flags[(flags != 0) & (flags != 1)] if flags.dtype.kind in "biuf" else flags
    if wrong.size:
        raise SpecError(
            "environment: info: action_mask: expected 1 for each action that is allowed and 0 for "
            f"the others, got {wrong[0]}"
        )
    mask = flags.astype(np.int8)
    if mask.shape != (size,):
        raise SpecError(
            f"environment: info: action_mask: expected {size} flags, one an action, "
            f"got {mask.shape[0]}"
        )
    return mask if mask.any() else np.ones(size, np.int8)
