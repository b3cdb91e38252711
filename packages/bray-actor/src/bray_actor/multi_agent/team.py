"""Agents of an environment that learn as a team: what each is told of the whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from bray_actor.multi_agent.environment import AgentTick
from bray_actor.multi_agent.team_sight import FlatSight
from bray_core.errors import ConfigError, SpecError
from bray_core.nested import Nested
from bray_core.spaces import LeafSpace, Spaces

Floats = npt.NDArray[np.float32]
Rows = Literal["member", "team"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Team:
    """Agents that learn together."""

    agents: tuple[str, ...]
    """Their names in the environment, M of them."""
    rows: Rows
    """What acts and is recorded: `member`, each by itself, told its number and the state; `team`,
    all at once under the first one's name, by a joint action."""


class TeamInPlay:
    """One team in one environment, game after game.

    It begins and ends as one. A member that is not there sees zeros, gets no reward, and its
    actions are dropped ("death masking", Yu et al. 2022, "The surprising effectiveness of PPO in
    cooperative multi-agent games", §5.5). The team's reward is the mean of its members'.

    Args:
        team: Who belongs to it.
        spaces: What its members see and may do, in their order.
        state_size: Numbers of the environment's own state; None: the state is what all see.

    Raises:
        ConfigError: they differ in what they see or may do, or it is not of a fixed size.
    """

    def __init__(self, team: Team, spaces: list[Spaces], state_size: int | None) -> None:
        first = spaces[0]
        for name, other in zip(team.agents, spaces, strict=True):
            if (difference := first.difference(other)) is not None:
                raise ConfigError(
                    f"environment: expected a team whose agents see and may do the same, but "
                    f"{name} differs from {team.agents[0]}: {difference}: give each kind a policy "
                    "of its own"
                )
        self.team = team
        self._sight = FlatSight(first)
        self._own = np.zeros((len(spaces), self._sight.size), np.float32)
        size = self._own.size if state_size is None else state_size
        see = self._of_team if team.rows == "team" else self._of_member
        self.spaces = see(first, size)
        """What is seen and may be done, the same for all that act."""
        self._there: list[str] = []
        self._gone: set[str] = set()
        self._has_ended = False

    def _of_member(self, first: Spaces, state_size: int) -> Spaces:
        number, size = self._own.shape
        seen = {
            "agent": LeafSpace("category", "int64", (), (number,)),
            "own": LeafSpace("real", "float32", (size,)),
            "state": LeafSpace("real", "float32", (state_size,)),
        }
        return Spaces(first.origin, seen, first.action)

    def _of_team(self, first: Spaces, state_size: int) -> Spaces:
        action = first.action
        if not isinstance(action, LeafSpace) or action.kind != "category" or action.shape:
            raise ConfigError(
                f"environment: {first.origin}: expected one choice (Discrete) of each agent of a "
                f"team that acts as one, got {action}: train it with mappo or ppo"
            )
        number = len(self._own)
        seen = {
            "agents": LeafSpace("real", "float32", self._own.shape),
            "state": LeafSpace("real", "float32", (state_size,)),
        }
        joint = LeafSpace("category", "int64", (number,), action.sizes * number)
        return Spaces(first.origin, seen, joint)

    @property
    def names(self) -> tuple[str, ...]:
        """Names under which it acts."""
        return self.team.agents[:1] if self.team.rows == "team" else self.team.agents

    def begin(self) -> None:
        """Begin a game."""
        self._gone, self._has_ended = set(), False

    def see(
        self, ticks: Mapping[str, AgentTick], state: Floats | None, *, is_over: bool
    ) -> dict[str, AgentTick]:
        """Return what those who act are told; nothing once the team has ended.

        Args:
            ticks: The environment's, of all its agents.
            state: Its state; None: it tells none.
            is_over: Whether nobody acts any more.

        Raises:
            SpecError: a member comes back to a team that has ended.
        """
        mine = {agent: ticks[agent] for agent in self.team.agents if agent in ticks}
        self._there = [agent for agent, tick in mine.items() if not tick.has_ended]
        if self._has_ended:
            if self._there:
                raise SpecError(
                    f"environment: {self._there[0]} came back after its whole team had left: end "
                    "the game when a team is gone, or train its agents by themselves"
                )
            return {}
        self._gone |= {agent for agent, tick in mine.items() if tick.has_ended}
        self._gone -= set(self._there)
        self._has_ended = is_over or len(self._gone) == len(self.team.agents)
        ended = [tick for tick in mine.values() if tick.has_ended]
        is_cut = any(tick.truncated and not tick.terminated for tick in ended)
        reward = sum(float(tick.reward) for tick in mine.values()) / len(self.team.agents)
        ends = self._has_ended and not is_cut, self._has_ended and is_cut
        return self._ticks(mine, state, reward, ends)

    def _ticks(
        self,
        mine: Mapping[str, AgentTick],
        state: Floats | None,
        reward: float,
        ends: tuple[bool, bool],
    ) -> dict[str, AgentTick]:
        own = self._own = np.zeros_like(self._own)
        for index, agent in enumerate(self.team.agents):
            if agent in mine and mine[agent].observation is not None:
                own[index] = self._sight.row(mine[agent].observation)
        state = own.reshape(-1) if state is None else state
        if self.team.rows == "team":
            told = {key: value for tick in mine.values() for key, value in tick.info.items()}
            seen = {"agents": own, "state": state}
            return {self.names[0]: AgentTick(seen, reward, *ends, told)}
        found = {}
        for index, agent in enumerate(self.team.agents):
            sight = {"agent": np.int64(index), "own": own[index], "state": state}
            info = mine[agent].info if agent in mine else {}
            found[agent] = AgentTick(sight, reward, *ends, info)
        return found

    def actions(self, taken: Mapping[str, Nested]) -> dict[str, Nested]:
        """Return the actions of the members that are there, by their names.

        Args:
            taken: Actions by the names under which the team acts.
        """
        if self.team.rows == "member":
            return {agent: taken[agent] for agent in self._there}
        joint = np.asarray(taken[self.names[0]]) if self._there else np.zeros(0)
        places = {agent: index for index, agent in enumerate(self.team.agents)}
        return {agent: joint[places[agent]] for agent in self._there}
