"""Two players switch lights on: who hits a dark one wins the round, and both are told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bray.sources.source_kind import SourceKind, SourceKindConfig
from bray_actor.multi_agent.environment import AgentTick
from bray_actor.multi_agent.runner import MultiAgentRunner
from bray_actor.multi_agent.seat import FixedCast, Seat
from bray_core.nested import Nested
from bray_core.settings.ranges import PositiveInt
from bray_core.spaces import Spaces

PLAYERS = ("north", "south")


class Lights:
    """One game: each player names a light, all at once, until all are on."""

    agents = PLAYERS

    def __init__(self, num_lights: int) -> None:
        self._on = np.zeros(num_lights, np.float32)

    def spaces(self, agent: str) -> Spaces:
        """Return what a player sees, the lights, and may do, name one."""
        number = len(self._on)
        told = {"observation": {"shape": [number]}, "action": {"discrete": number}}
        return Spaces.parse("lights", told)

    def reset(self, seed: int | None = None) -> dict[str, AgentTick]:
        """Begin in the dark."""
        self._on[:] = 0
        self._round = 0
        return {agent: AgentTick(self._seen()) for agent in PLAYERS}

    def step(self, actions: Mapping[str, Nested]) -> dict[str, AgentTick]:
        """Switch on what both named; a light that was dark is a point."""
        points = {agent: 1.0 - float(self._on[int(actions[agent])]) for agent in PLAYERS}
        for action in actions.values():
            self._on[int(action)] = 1
        self._round += 1
        is_over = bool(self._on.all()) or self._round > 12
        seen = None if is_over else self._seen()
        return {agent: AgentTick(seen, points[agent], terminated=is_over) for agent in PLAYERS}

    def _seen(self) -> npt.NDArray[np.float32]:
        return self._on.copy()

    def close(self) -> None:
        """Free nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LightsConfig(SourceKindConfig):
    """Settings of the game."""

    num_lights: PositiveInt = 4
    """Lights of a game. More of them make it longer. 2 to 16."""


class LightsSource(SourceKind[LightsConfig]):
    """Games of lights, for two players."""

    Config = LightsConfig

    def spaces(self) -> Mapping[str, Spaces]:
        """Return what both players see and may do."""
        game = Lights(self.config.num_lights)
        return {agent: game.spaces(agent) for agent in PLAYERS}

    def runner(
        self, seats: Mapping[str, Seat], *, quotas: Mapping[str, int], seed: int, worker: int
    ) -> MultiAgentRunner:
        """Return a runner that steps `num_envs` games."""
        games = [Lights(self.config.num_lights) for _ in range(self.config.num_envs)]
        return MultiAgentRunner(games, FixedCast(seats), seed=seed, quotas=quotas)
