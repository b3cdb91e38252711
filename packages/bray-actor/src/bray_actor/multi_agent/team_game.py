"""A game of several agents, of which some are told what they need to learn as a team."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bray_actor.environments.error_limit import ERROR
from bray_actor.multi_agent.environment import (
    AgentTick,
    MultiAgentEnvironment,
    takes_options,
)
from bray_actor.multi_agent.making import MultiAgentSpec
from bray_actor.multi_agent.team import Team, TeamInPlay
from bray_core.errors import ConfigError
from bray_core.nested import Nested
from bray_core.spaces import Spaces


class TeamGame:
    """A `MultiAgentEnvironment` in which teams play beside agents that learn by themselves.

    A member of a team sees `{"agent": its number, "own": [D], "state": [S]}`; a team that acts as
    one sees `{"agents": [M, D], "state": [S]}`. The state is the environment's own, where it has
    one.

    Args:
        environment: Environment whose agents act at once.
        teams: The teams; agents that are in none stay as they are.

    Raises:
        ConfigError: its agents take turns, or a team's agents differ.
    """

    def __init__(self, environment: MultiAgentEnvironment, teams: Sequence[Team]) -> None:
        told: Any = environment
        self.name: str = getattr(told, "name", type(environment).__name__)
        """What is played, for messages."""
        if not getattr(told, "acts_at_once", False):
            raise ConfigError(
                f"environment: {self.name}: expected agents that act at once (a ParallelEnv of "
                "PettingZoo) for a team, got agents that take turns: train them by themselves, "
                "with ppo or dqn"
            )
        self._game = environment
        size: int | None = getattr(told, "state_size", None)
        self._has_state = size is not None
        self._teams = [
            TeamInPlay(team, [environment.spaces(agent) for agent in team.agents], size)
            for team in teams
        ]
        self._spaces = {name: team.spaces for team in self._teams for name in team.names}
        members = {agent for team in teams for agent in team.agents}
        self._others = [agent for agent in environment.agents if agent not in members]
        playing = {*self._spaces, *self._others}
        self._agents = [agent for agent in environment.agents if agent in playing]

    @property
    def agents(self) -> Sequence[str]:
        """Names of all that act: agents, and teams that act as one."""
        return self._agents

    def spaces(self, agent: str) -> Spaces:
        """Return what an agent or a team sees and may do."""
        return self._spaces[agent] if agent in self._spaces else self._game.spaces(agent)

    @property
    def takes_options(self) -> bool:
        """Whether the environment's `reset` takes options."""
        return takes_options(self._game)

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> dict[str, AgentTick]:
        """Begin a game; all teams act."""
        for team in self._teams:
            team.begin()
        if options is None:
            return self._told(self._game.reset(seed))
        reset: Any = self._game.reset
        return self._told(reset(seed, options=options))

    def step(self, actions: Mapping[str, Nested]) -> dict[str, AgentTick]:
        """Take the actions of all; those of members that are not there are dropped."""
        taken = {agent: actions[agent] for agent in self._others if agent in actions}
        for team in self._teams:
            taken |= team.actions(actions)
        ticks = self._game.step(taken)
        is_void = any(ERROR in tick.info for tick in ticks.values())
        return ticks if is_void else self._told(ticks)

    def _told(self, ticks: Mapping[str, AgentTick]) -> dict[str, AgentTick]:
        told: Any = self._game
        state = np.ravel(told.state()).astype(np.float32) if self._has_state else None
        is_over = all(tick.has_ended for tick in ticks.values())
        found = {agent: ticks[agent] for agent in self._others if agent in ticks}
        for team in self._teams:
            found |= team.see(ticks, state, is_over=is_over)
        return found

    def render(self) -> Any:
        """Return the game as it stands, as its environment draws it; None: it draws nothing."""
        render = getattr(self._game, "render", None)
        return None if render is None else render()

    def close(self) -> None:
        """Close the environment."""
        self._game.close()


@dataclass(frozen=True, kw_only=True, slots=True)
class TeamedSpec(MultiAgentSpec):
    """How an environment is made in which teams play."""

    teams: tuple[Team, ...] = ()
    """The teams."""

    def make(self) -> MultiAgentEnvironment:
        """Make the environment.

        Raises:
            ConfigError: it cannot be made, or the teams cannot play it.
            MissingExtraError: what it needs is not installed.
        """
        return TeamGame(MultiAgentSpec.make(self), self.teams)
