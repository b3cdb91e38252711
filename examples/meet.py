"""Two walkers on a line are to stand on the same field: a team to train, as PettingZoo wants it.

bray train mappo meet --goal -1.2 --frames 60000    # where this file lies
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv


class Meet(ParallelEnv):
    """Each agent sees where both stand, and steps left, stays or steps right."""

    metadata: ClassVar[dict[str, Any]] = {"name": "meet_v0"}
    possible_agents: ClassVar[list[str]] = ["left", "right"]
    length, limit = 9, 16

    def observation_space(self, agent: str) -> spaces.Space:
        """Return the space of the two places, the agent's own first."""
        return spaces.Box(-1.0, 1.0, (2,), np.float32)

    def action_space(self, agent: str) -> spaces.Space:
        """Return the space of left, stay and right."""
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        """Put both anywhere; the same for the same seed."""
        if seed is not None or not hasattr(self, "random"):
            self.random = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self.steps = 0
        self.left, self.right = self.random.integers(self.length, size=2).tolist()
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> tuple[Any, ...]:
        """Move both; the reward is minus how far apart they are."""
        self.left = self._moved(self.left, actions["left"])
        self.right = self._moved(self.right, actions["right"])
        self.steps += 1
        agents, late = self.agents, self.steps == self.limit
        self.agents = [] if late else agents
        return (
            self._seen(),
            dict.fromkeys(agents, -abs(self.left - self.right) / self.length),
            dict.fromkeys(agents, False),
            dict.fromkeys(agents, late),  # truncated: only the time is over
            {agent: {} for agent in agents},
        )

    def _moved(self, place: int, action: int) -> int:
        return min(max(place + int(action) - 1, 0), self.length - 1)

    def _seen(self) -> dict[str, Any]:
        left, right = (2 * place / (self.length - 1) - 1 for place in (self.left, self.right))
        return {
            "left": np.array([left, right], np.float32),
            "right": np.array([right, left], np.float32),
        }


parallel_env = Meet
