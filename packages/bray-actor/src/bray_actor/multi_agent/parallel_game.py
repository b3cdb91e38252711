"""PettingZoo's environments in which all agents act at once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from bray_actor.multi_agent.environment import AgentTick
from bray_actor.multi_agent.pettingzoo_game import PettingZooGame, given
from bray_core.errors import ConfigError
from bray_core.nested import Nested


class ParallelGame(PettingZooGame):
    """A `pettingzoo.ParallelEnv` as a `MultiAgentEnvironment`; agents may come and go.

    Args:
        environment: Environment of PettingZoo's parallel API.
    """

    acts_at_once = True
    """Whether all who are there act in each step."""

    @property
    def state_size(self) -> int | None:
        """Numbers of the state that the environment tells of the whole game; None: it has none."""
        space = getattr(self._env, "state_space", None)
        return None if space is None else math.prod(space.shape)

    def state(self) -> Any:
        """Return the state of the whole game, an array."""
        return self._env.state()

    def _first_infos(self) -> Mapping[str, Any]:
        begun = self._env.reset(seed=0)
        if not isinstance(begun, tuple) or len(begun) != 2:
            raise ConfigError(
                "environment: reset: expected (observations, infos), each by agent, got "
                f"{type(begun).__name__}"
            )
        infos: Mapping[str, Any] = begun[1]
        return infos

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> dict[str, AgentTick]:
        """Begin a game; all who are there act."""
        observations, infos = self._env.reset(seed=seed, **given(options))
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
