"""Environments that are stepped one after the other in this process.

Imports gymnasium: whoever imports this has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import iterate

from bray_actor.environments.mixed_infos import MixedInfos


class SerialEnvironments(MixedInfos, SyncVectorEnv):  # type: ignore[misc]
    """Gymnasium's `SyncVectorEnv` whose step that ends an episode begins the next, but quicker.

    Observations that are one array are written to their place once, and not stacked and copied.

    Args:
        makers: functions that make the environments.
    """

    def __init__(self, makers: Sequence[Callable[[], Any]]) -> None:
        super().__init__(makers, autoreset_mode=AutoresetMode.SAME_STEP)
        self._is_one_array = isinstance(self.single_observation_space, spaces.Box)

    def step(
        self, actions: Any
    ) -> tuple[
        Any,
        npt.NDArray[np.float64],
        npt.NDArray[np.bool_],
        npt.NDArray[np.bool_],
        dict[str, Any],
    ]:
        """Step all, and begin the next episode of those whose episode has ended."""
        if not self._is_one_array:
            found: Any = super().step(actions)
            return found  # type: ignore[no-any-return]
        space, count = self.single_observation_space, self.num_envs
        rows = np.empty((count, *space.shape), space.dtype)
        rewards = np.empty(count)
        terminated, truncated = np.empty(count, np.bool_), np.empty(count, np.bool_)
        infos: dict[str, Any] = {}
        each = zip(self.envs, iterate(self.action_space, actions), strict=True)
        for i, (env, action) in enumerate(each):
            seen, rewards[i], terminated[i], truncated[i], info = env.step(action)
            if terminated[i] or truncated[i]:
                infos = self._add_info(infos, {"final_obs": seen, "final_info": info}, i)
                seen, info = env.reset()
            _write(rows[i, ...], seen)
            if info:
                infos = self._add_info(infos, info, i)
        return rows, rewards, terminated, truncated, infos


def _write(row: npt.NDArray[Any], seen: Any) -> None:
    """Copy an observation into its row; one of another shape is refused, as by `numpy.stack`."""
    if np.shape(seen) != row.shape:
        raise ValueError(f"observation: expected shape {row.shape}, got {np.shape(seen)}")
    np.copyto(row, seen, casting="same_kind")
