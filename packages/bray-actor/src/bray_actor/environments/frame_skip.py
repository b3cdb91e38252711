"""Actions that are taken for several steps."""

from __future__ import annotations

from typing import Any

import gymnasium

from bray_actor.environments.finite import check_reward


class FrameSkip(gymnasium.Wrapper[Any, Any, Any, Any]):  # type: ignore[misc]
    """Takes each action for several steps, sums their rewards, and stops where an episode ends.

    Args:
        env: A Gymnasium environment.
        steps: Number of steps of an action.
    """

    def __init__(self, env: Any, steps: int) -> None:
        super().__init__(env)
        self._steps = steps

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take an action. Raises SpecError: a reward is no finite number of float32."""
        total = 0.0
        for _ in range(self._steps):
            observation, reward, terminated, truncated, info = self.env.step(action)
            check_reward(reward, "step: reward")
            total += float(reward)
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info
