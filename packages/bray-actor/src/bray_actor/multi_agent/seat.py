"""Who plays which agent of a game, and how a game ended."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from bray_actor.policy.policy_config import PolicyConfig
from bray_core.protocols import BufferProtocol, ModelProtocol


@dataclass(frozen=True, kw_only=True, slots=True)
class Seat:
    """What answers for an agent: its model, how it acts, and where that is recorded."""

    name: str
    """Name of the policy: that of a learner, or of an opponent such as `v12`."""
    model: ModelProtocol
    """Answers observations; its version may change while it plays."""
    config: PolicyConfig
    """How the policy acts."""
    buffer: BufferProtocol | None = None
    """Where segments go; None records nothing: an opponent."""


class GameResult(NamedTuple):
    """One game that was played to its end."""

    seats: Mapping[str, str]
    """Name of the seat by agent."""
    returns: Mapping[str, float]
    """Sum of the rewards by agent; those that never came to act are absent."""
    lengths: Mapping[str, int]
    """Number of actions by agent."""
    scores: Mapping[str, float] = {}
    """What simulators said of how it ended, by agent: 1 won, 0.5 drawn, 0 lost; empty where they
    say nothing."""
    metrics: Mapping[str, Mapping[str, float]] = {}
    """What the environment or the simulator said of the episode besides, by name, by agent; agents
    of which it said nothing are absent."""


class Cast(Protocol):
    """Says who plays; asked before each game."""

    def draw(self, generator: random.Random) -> Mapping[str, Seat]:
        """Return the seat of each agent of the next game.

        Args:
            generator: source of what is drawn.
        """
        ...

    def tell(self, news: Any) -> None:
        """Take what the driver says between two turns, such as new opponents."""
        ...


class FixedCast:
    """The same policies in every game.

    Args:
        seats: seat by agent.
    """

    def __init__(self, seats: Mapping[str, Seat]) -> None:
        self._seats = seats

    def draw(self, generator: random.Random) -> Mapping[str, Seat]:
        """Return the seats."""
        return self._seats

    def tell(self, news: Any) -> None:
        """Do nothing."""
