"""A game of two agents in turn, as tests start it: the first to pass 4 wins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bray_actor.multi_agent.environment import AgentTick
from bray_core.spaces import Spaces

DESCRIBED = {"observation": {"shape": [2]}, "action": {"discrete": 3}}
SPACES = Spaces.parse("race", DESCRIBED)


class Race:
    """Each action is a step of 0, 1 or 2; who stands still too often loses."""

    agents = ("red", "blue")

    def spaces(self, agent: str) -> Spaces:
        return SPACES

    def reset(self, seed: int | None = None) -> dict[str, AgentTick]:
        self.at = dict.fromkeys(self.agents, 0)
        self.turn = 0
        return {"red": AgentTick(self._seen("red"))}

    def _seen(self, agent: str) -> np.ndarray[Any, Any]:
        return np.array([self.at[agent], self.turn], np.float32)

    def step(self, actions: Mapping[str, Any]) -> dict[str, AgentTick]:
        ((agent, action),) = actions.items()
        self.at[agent] += int(action)
        self.turn += 1
        if self.at[agent] > 4 or self.turn > 20:
            return {
                name: AgentTick(None, 1.0 if name == agent else -1.0, terminated=True)
                for name in self.agents
            }
        following = self.agents[self.turn % 2]
        return {following: AgentTick(self._seen(following))}

    def close(self) -> None: ...


def races() -> list[dict[str, Any]]:
    """Return an episode of the race as the red one sees it."""
    observation = np.linspace(0, 1, 10, dtype=np.float32).reshape(5, 2)
    return [{"observation": observation, "action": [1] * 4, "reward": [0.5] * 4}] * 3
