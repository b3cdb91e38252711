"""A game of two sides whose infos say what options it began with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from race_game import Race

from bray_actor.multi_agent.environment import AgentTick


class HookedRace(Race):
    """A race that takes options, and whose last ticks have metrics."""

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> dict[str, AgentTick]:
        """Begin a race, and keep the options."""
        self.options = dict(options or {})
        return super().reset(seed)

    def step(self, actions: Mapping[str, Any]) -> dict[str, AgentTick]:
        """Take an action; the end tells the difficulty, and who it was."""
        ticks = super().step(actions)
        difficulty = self.options.get("difficulty", -1.0)
        return {
            agent: tick._replace(
                info={
                    "metrics": {"difficulty": difficulty, "is_red": agent == "red"},
                    "turns": self.turn,
                }
            )
            if tick.has_ended
            else tick
            for agent, tick in ticks.items()
        }


class DrawnRace(Race):
    """A race that draws itself."""

    def render(self) -> Any:
        """Return how far both have come."""
        image = np.zeros((8, 40, 3), np.uint8)
        for row, agent in enumerate(self.agents):
            image[4 * row : 4 * row + 4, : 8 * self.at[agent]] = 255
        return image
