"""A point on a plane that is to reach a goal: the smallest task with goals."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.wrappers import TimeLimit

NEAR = 0.05
"""Distance from which the goal is reached."""
_STEP = 0.05
_MOVES = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]])


class ReachEnv(gymnasium.Env[Any, Any]):
    """A reward of 0 near the goal and of −1 elsewhere, for 50 steps; it never terminates.

    Args:
        discrete: whether an action is one of four directions, instead of a step along both axes.
    """

    def __init__(self, discrete: bool = False) -> None:
        place = Box(-1.0, 1.0, (2,), np.float32)
        self.observation_space = Dict(
            {"observation": place, "achieved_goal": place, "desired_goal": place}
        )
        self.action_space = Discrete(4) if discrete else Box(-1.0, 1.0, (2,), np.float32)
        self._discrete = discrete

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        distance = np.linalg.norm(achieved_goal - desired_goal, axis=-1)
        return -(distance > NEAR).astype(np.float32)

    def _seen(self) -> dict[str, Any]:
        place = self._place.astype(np.float32)
        return {"observation": place, "achieved_goal": place, "desired_goal": self._goal}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._place = self.np_random.uniform(-1, 1, 2)
        self._goal = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        move = _MOVES[action] if self._discrete else np.clip(action, -1, 1)
        self._place = np.clip(self._place + _STEP * move, -1, 1)
        seen = self._seen()
        reward = float(self.compute_reward(seen["achieved_goal"], seen["desired_goal"], {}))
        return seen, reward, False, False, {}


class EndingReachEnv(ReachEnv):
    """The same, which terminates at the goal; what it computes takes one pair at a time."""

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return 0.0 if self.compute_terminated(achieved_goal, desired_goal, info) else -1.0

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Any) -> bool:
        return bool(np.linalg.norm(achieved_goal - desired_goal) <= NEAR)

    def step(self, action: Any) -> Any:
        seen, reward, _, truncated, info = super().step(action)
        return seen, reward, reward == 0.0, truncated, info


class NoRewardEnv(ReachEnv):
    """One that computes no reward of goals."""

    compute_reward = None  # type: ignore[assignment]


class BonusEnv(ReachEnv):
    """One whose step gives other rewards than it computes."""

    def step(self, action: Any) -> Any:
        seen, reward, *rest = super().step(action)
        return seen, reward - 0.5, *rest


def timed_reach() -> gymnasium.Env[Any, Any]:
    """Return the task for processes that know no registration of this file's."""
    return TimeLimit(ReachEnv(), 50)


for _name, _class in (
    ("Reach", ReachEnv),
    ("EndingReach", EndingReachEnv),
    ("NoReward", NoRewardEnv),
    ("Bonus", BonusEnv),
):
    if f"BrayTest{_name}-v0" not in gymnasium.registry:
        gymnasium.register(f"BrayTest{_name}-v0", _class, max_episode_steps=50)
