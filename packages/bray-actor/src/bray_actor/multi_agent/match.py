"""One match over the wire: who may play which side of it, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bray_actor.multi_agent.seat import GameResult, Seat
from bray_actor.policy.session_start import SessionStart
from bray_core.errors import ServiceError
from bray_core.settings.name_pattern import fits


@dataclass(slots=True, eq=False)
class Match:
    """A match from its first start on: who has come, who plays, and how each ended."""

    name: str
    """Name that its sessions say."""
    seats: Mapping[str, Seat]
    """Who plays, by agent or pattern of agents."""
    sides: int | None
    """Number of its sides; None: each agent of the cast is one."""
    until: float
    """Time until which all sides must have come."""
    is_void: bool = False
    """Whether it counts no more."""
    came: dict[str, str] = field(default_factory=dict)
    """Name of who plays it, by agent that has come."""
    playing: set[str] = field(default_factory=set)
    """Agents that have come and not left."""
    returns: dict[str, float] = field(default_factory=dict)
    """Returns of the agents that have ended."""
    lengths: dict[str, int] = field(default_factory=dict)
    """Steps of these."""
    scores: dict[str, float] = field(default_factory=dict)
    """Scores of these, where the simulator says some."""
    metrics: dict[str, Mapping[str, float]] = field(default_factory=dict)
    """What the simulator said of their episodes besides, where it says something."""

    @property
    def num_sides(self) -> int:
        """Number of sides that must come."""
        return len(self.seats) if self.sides is None else self.sides

    @property
    def is_complete(self) -> bool:
        """Whether all sides have come."""
        return len(self.came) >= self.num_sides

    def agent(self, start: SessionStart) -> str:
        """Return who of the match a session is.

        Raises:
            ServiceError: `bad_request`: nobody, or somebody who is there already.
        """
        if start.sides not in (None, self.num_sides):
            raise refused(f"sides: match {self.name} has {self.num_sides}", start.sides)
        agent = start.agent
        if agent is None:
            if start.side is None:
                raise refused(f"match {self.name}: expected an agent or a side, got neither")
            agent = self._agent_of(start.side)
        self.seat(agent)
        if agent in self.came:
            raise refused(f"match {self.name}: {agent!r} has come already: start another match")
        if self.is_complete:
            raise refused(f"match {self.name}: all {self.num_sides} sides have come", agent)
        return agent

    def _agent_of(self, side: int) -> str:
        """Return the agent of a side: that of this place in the cast."""
        names = list(self.seats)
        if side >= len(names):
            raise refused(f"side: expected 0 to {len(names) - 1}", side)
        if is_pattern(names[side]):
            raise refused(f"match {self.name}: expected an agent beside the side, got none")
        return names[side]

    def seat(self, agent: str) -> Seat:
        """Return who plays an agent. Raises ServiceError: `bad_request`: nobody."""
        if agent in self.seats:
            return self.seats[agent]
        for pattern, seat in self.seats.items():
            if fits(agent, pattern):
                return seat
        raise refused(f"agent: expected one of {_names(self.seats)}", agent)

    def result(self) -> GameResult:
        """Return how the match ended, the agents in the order of the cast."""
        known = [agent for agent in self.seats if agent in self.came]
        agents = [*known, *(agent for agent in self.came if agent not in known)]
        return GameResult(
            {agent: self.came[agent] for agent in agents},
            {agent: self.returns[agent] for agent in agents},
            {agent: self.lengths[agent] for agent in agents},
            {agent: self.scores[agent] for agent in agents if agent in self.scores},
            {agent: self.metrics[agent] for agent in agents if agent in self.metrics},
        )


def refused(text: str, *got: object) -> ServiceError:
    """Return the error of a session that cannot play a match so."""
    return ServiceError("bad_request", text + "".join(f", got {g!r:.100}" for g in got))


def is_pattern(name: str) -> bool:
    """Return whether a name of the cast stands for several agents."""
    return any(sign in name for sign in "*?[")


def _names(seats: Mapping[str, Seat]) -> str:
    return ", ".join(seats)
