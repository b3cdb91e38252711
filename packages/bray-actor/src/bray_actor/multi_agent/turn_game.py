"""PettingZoo's environments in which agents act one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bray_actor.multi_agent.environment import AgentTick
from bray_actor.multi_agent.pettingzoo_game import PettingZooGame, given
from bray_core.nested import Nested


class TurnGame(PettingZooGame):
    """A `pettingzoo.AECEnv` (agent environment cycle) as a `MultiAgentEnvironment`.

    One agent acts at a time. The reward of its tick is what it got since its last action, and who
    has died is told so before the next one acts.

    Args:
        environment: Environment of PettingZoo's turn-based API.
    """

    def _first_infos(self) -> Mapping[str, Any]:
        self._env.reset(seed=0)
        infos: Mapping[str, Any] = self._env.infos
        return infos

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> dict[str, AgentTick]:
        """Begin a game; one agent acts."""
        self._env.reset(seed=seed, **given(options))
        return self._until_one_acts()

    def step(self, actions: Mapping[str, Nested]) -> dict[str, AgentTick]:
        """Take the action of the agent whose turn it was."""
        ((agent, action),) = actions.items()
        self._env.step(self._view(agent).action(action))
        return self._until_one_acts()

    def _until_one_acts(self) -> dict[str, AgentTick]:
        """Return the ticks of those who have died, and of the first who has not."""
        ticks: dict[str, AgentTick] = {}
        while self._env.agents:
            agent = self._env.agent_selection
            value, reward, terminated, truncated, info = self._env.last()
            observation = self._view(agent).observation(value, info)
            tick = AgentTick(observation, float(reward), bool(terminated), bool(truncated), info)
            ticks[agent] = tick
            if not tick.has_ended:
                break
            self._env.step(None)
        return ticks
