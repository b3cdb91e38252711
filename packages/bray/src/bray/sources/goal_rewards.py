"""The rewards that an environment gives where one goal is achieved and another desired."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from bray_actor.environments.spec import EnvironmentSpec
from bray_core.errors import BrayError, ConfigError
from bray_core.nested import Nested
from bray_core.spaces import Spaces

Rows = npt.NDArray[Any]

SEEN, ACHIEVED, DESIRED = "observation", "achieved_goal", "desired_goal"
"""Keys of an observation with a goal, as Gymnasium-Robotics names them."""


def check_goals(spaces: Spaces) -> None:
    """Refuse observations without a goal that can be exchanged for an achieved one.

    Raises:
        ConfigError: names the keys that are missing, or the shapes that differ.
    """
    space: Nested = spaces.observation
    wanted = (SEEN, ACHIEVED, DESIRED)
    if not isinstance(space, dict) or not set(wanted) <= set(space):
        got = f"a Dict of {', '.join(sorted(space))}" if isinstance(space, dict) else "no such Dict"
        raise ConfigError(
            f"buffer.hindsight: {spaces.origin}: expected observations that are a Dict of "
            f"{', '.join(wanted)}, got {got}: give it an environment with goals, or hindsight=0"
        )
    achieved, desired = (getattr(space[name], "spec", None) for name in (ACHIEVED, DESIRED))
    if achieved is None or achieved != desired:
        raise ConfigError(
            f"buffer.hindsight: {spaces.origin}: expected {ACHIEVED} and {DESIRED} to be arrays "
            f"of one shape and dtype, got {achieved or 'several'} and {desired or 'several'}"
        )


class GoalRewards:
    """Asks one environment, made for nothing else, for the rewards of goals.

    Args:
        environment: how it is made. Wrappers around it have no say: its `compute_reward` decides.

    Raises:
        ConfigError: it has no `compute_reward`.
    """

    def __init__(self, environment: EnvironmentSpec) -> None:
        self._env = environment.make(reports=False)
        bare = self._env.unwrapped
        compute = getattr(bare, "compute_reward", None)
        if not callable(compute):
            self.close()
            raise ConfigError(
                f"buffer.hindsight: {environment}: expected an environment with a method "
                f"compute_reward(achieved_goal, desired_goal, info), got {type(bare).__name__} "
                "without: write one, or set hindsight=0"
            )
        self._reward = Judgement("compute_reward", compute)
        ends = getattr(bare, "compute_terminated", None)
        self._terminated = Judgement("compute_terminated", ends) if callable(ends) else None

    def rewards(self, achieved: Rows, desired: Rows) -> Rows:
        """Return the rewards `[N]` of achieved beside desired goals, both `[N, …]`."""
        return self._reward(achieved, desired)

    def terminated(self, achieved: Rows, desired: Rows) -> Rows:
        """Return whether episodes end there, `[N]`; never where no `compute_terminated` says so."""
        if self._terminated is None:
            return np.zeros(len(achieved), bool)
        return self._terminated(achieved, desired).astype(bool)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


class Judgement:
    """Calls a function of one achieved and one desired goal for many pairs at once, if it can that.

    The first batch of two or more is asked in both ways: where these differ, and where a later
    answer is not a number for each pair, pairs are asked one after the other.

    Args:
        name: name of the function, for messages.
        function: `(achieved, desired, info)` → a number. Its info is always empty.
    """

    def __init__(self, name: str, function: Callable[[Rows, Rows, dict[str, Any]], Any]) -> None:
        self._name = name
        self._function = function
        self.takes_batches: bool | None = None
        """Whether the function takes many pairs at once; None until it was asked."""

    def __call__(self, achieved: Rows, desired: Rows) -> Rows:
        """Return the function's numbers `[N]`.

        Raises:
            BrayError: the function raised, or returned no number for one pair.
        """
        if self.takes_batches is None and len(achieved) > 1:
            one_by_one = self._of_each(achieved, desired)
            batch = self._of_all(achieved, desired)
            self.takes_batches = batch is not None and np.allclose(
                batch, one_by_one, equal_nan=True
            )
            return one_by_one
        batch = self._of_all(achieved, desired) if self.takes_batches else None
        return self._of_each(achieved, desired) if batch is None else batch

    def _of_all(self, achieved: Rows, desired: Rows) -> Rows | None:
        """Return the numbers by one call; None where it gives no number for each pair."""
        try:
            found = np.asarray(self._function(achieved, desired, {}))
        except Exception:  # noqa: BLE001  the boundary to code of others, written for one pair
            return None
        is_one_each = found.shape == (len(achieved),) and found.dtype.kind in "biuf"
        return found if is_one_each else None

    def _of_each(self, achieved: Rows, desired: Rows) -> Rows:
        try:
            pairs = zip(achieved, desired, strict=True)
            return np.array([float(self._function(one, other, {})) for one, other in pairs])
        except Exception as error:
            raise BrayError(
                f"buffer.hindsight: {self._name}: expected a number for one achieved and one "
                f"desired goal, got {type(error).__name__}: {error}: it must need nothing of "
                "info, which no replay holds"
            ) from error
