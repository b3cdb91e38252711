"""Rock, paper, scissors: the smallest game in which whoever only meets itself runs in circles.

A game is one move of each side at once. Name it where an environment is wanted:

    environment: examples/league/rock_paper_scissors.py:RockPaperScissors
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bray_actor.multi_agent.environment import AgentTick
from bray_core.spaces import Spaces

PAYOFF = ((0, -1, 1), (1, 0, -1), (-1, 1, 0))
"""What the row's player wins: rock, paper, scissors against the same."""


class RockPaperScissors:
    """A matrix game of two players as a `MultiAgentEnvironment`.

    Args:
        payoff: What the first player wins, `[A, A]`; the second wins as much less.
    """

    def __init__(self, payoff: Sequence[Sequence[float]] = PAYOFF) -> None:
        self._payoff = np.asarray(payoff, np.float64)
        # There is nothing to see: a constant stands for it.
        description = {
            "observation": {"shape": [1]},
            "action": {"discrete": len(self._payoff)},
        }
        self._spaces = Spaces.parse("rock-paper-scissors", description)

    @property
    def agents(self) -> Sequence[str]:
        """Names of both players."""
        return ("left", "right")

    def spaces(self, agent: str) -> Spaces:
        """Return what a player sees and may do."""
        return self._spaces

    def reset(self, seed: int | None = None) -> dict[str, AgentTick]:
        """Begin a game; both act."""
        return {agent: AgentTick(np.ones(1, np.float32)) for agent in self.agents}

    def step(self, actions: Mapping[str, Any]) -> dict[str, AgentTick]:
        """Take both actions; the game is over."""
        won = float(self._payoff[int(actions["left"]), int(actions["right"])])
        return {
            "left": AgentTick(None, won, terminated=True),
            "right": AgentTick(None, -won, terminated=True),
        }

    def close(self) -> None:
        """Do nothing."""


def always_rock(observation: Any, generator: np.random.Generator) -> int:
    """Play rock: an opponent for `goal.against`."""
    return 0
