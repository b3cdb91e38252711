"""A match of unlike sides, as tests start it: a cat guesses where two mice hide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bray_actor.multi_agent.environment import AgentTick
from bray_core.spaces import Spaces

CAT = {"observation": {"shape": [2]}, "action": {"discrete": 3}}
MOUSE = {"observation": {"shape": [3]}, "action": {"discrete": 2}}
NUM_TICKS = 4


class Chase:
    """A mouse hides in one of two holes; the cat looks into one, or sleeps (2).

    A mouse that is found pays the cat 1; a cat that sleeps loses half of one to each.
    """

    agents: tuple[str, ...] = ("cat", "mouse_0", "mouse_1")
    described: Mapping[str, Any] = {"cat": CAT, "mouse_0": MOUSE, "mouse_1": MOUSE}

    def spaces(self, agent: str) -> Spaces:
        return Spaces.parse(agent, self.described[agent])

    def reset(self, seed: int | None = None) -> dict[str, AgentTick]:
        self.at = 0
        return {agent: AgentTick(self._seen(agent)) for agent in self.agents}

    def _seen(self, agent: str) -> np.ndarray[Any, Any]:
        return np.full(self.described[agent]["observation"]["shape"], self.at, np.float32)

    def step(self, actions: Mapping[str, Any]) -> dict[str, AgentTick]:
        self.at += 1
        rewards = self._rewards({agent: int(action) for agent, action in actions.items()})
        if self.at == NUM_TICKS:
            return {a: AgentTick(None, rewards[a], terminated=True) for a in self.agents}
        return {a: AgentTick(self._seen(a), rewards[a]) for a in self.agents}

    def _rewards(self, actions: Mapping[str, int]) -> dict[str, float]:
        cat = actions["cat"]
        mice = {
            agent: 0.5 if cat == 2 else -float(hole == cat)
            for agent, hole in actions.items()
            if agent != "cat"
        }
        return {"cat": -sum(mice.values()) / len(mice), **mice}

    def close(self) -> None: ...


class Rivals(Chase):
    """Two cats chase one mouse each; cats are alike."""

    agents = ("cat_0", "cat_1", "mouse_0", "mouse_1")
    described = {"cat_0": CAT, "cat_1": CAT, "mouse_0": MOUSE, "mouse_1": MOUSE}  # noqa: RUF012

    def _rewards(self, actions: Mapping[str, int]) -> dict[str, float]:
        found = {}
        for cat, mouse in (("cat_0", "mouse_0"), ("cat_1", "mouse_1")):
            gain = -0.5 if actions[cat] == 2 else float(actions[cat] == actions[mouse])
            found[cat], found[mouse] = gain, -gain
        return found
