"""PettingZoo's environments in which all agents act at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bray_actor.multi_agent.agent_view import AgentView, agents_of, tells_masks
from bray_actor.multi_agent.environment import AgentTick
from bray_core.nested import Nested
from bray_core.spaces import Spaces


class ParallelGame:
    """A `pettingzoo.ParallelEnv` as a `MultiAgentEnvironment`; agents may come and go.

    Args:
        environment: Environment of PettingZoo's parallel API.
    """

    def __init__(self, environment: Any) -> None:
        self._env = environment
        self._agents = agents_of(environment)
        _, infos = environment.reset(seed=0)
        self._tells_mask = tells_masks(infos)
        self._views: dict[str, AgentView] = {}

    @property
    def agents(self) -> Sequence[str]:
        """Names of all agents that may ever take part."""
        return self._agents

    def spaces(self, agent: str) -> Spaces:
        """Return what an agent sees and may do."""
        return self._view(agent).spaces

    def _view(self, agent: str) -> AgentView:
        if agent not in self._views:
            self._views[agent] = AgentView(self._env, agent, tells_mask=self._tells_mask)
        return self._views[agent]

    def reset(self, seed: int | None = None) -> dict[str, AgentTick]:
        """Begin a game; all who are there act."""
        observations, infos = self._env.reset(seed=seed)
        return {
            agent: self._tick(agent, observations, infos, 0.0, (False, False))
            for agent in self._env.agents
        }

    def step(self, actions: Mapping[str, Nested]) -> dict[str, AgentTick]:
        """Take the actions of all; return the ticks of those who acted, and of who came."""
        taken = {agent: self._view(agent).action(action) for agent, action in actions.items()}
        observations, rewards, terminated, truncated, infos = self._env.step(taken)
        following = list(self._env.agents)
        gone = [agent for agent in actions if agent not in following]
        ticks = {}
        for agent in [*gone, *following]:
            ends = bool(terminated.get(agent, False)), bool(truncated.get(agent, False))
            if agent in gone and not any(ends):
                ends = (False, True)  # it left without a word
            reward = float(rewards.get(agent, 0.0))
            ticks[agent] = self._tick(agent, observations, infos, reward, ends)
        return ticks

    def _tick(
        self,
        agent: str,
        observations: Mapping[str, Any],
        infos: Mapping[str, Any],
        reward: float,
        ends: tuple[bool, bool],
    ) -> AgentTick:
        info = infos.get(agent, {})
        observation = self._view(agent).observation(observations.get(agent), info)
        return AgentTick(observation, reward, *ends, info)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()
