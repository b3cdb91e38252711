"""What the driver tells those who play: whom each learner meets until further notice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from bray_core.protocols import ModelProtocol

LATEST = "latest"
"""What stands behind a learner's name where it is met as it is now."""


def player_name(learner: str, what: str) -> str:
    """Return the name of a learner's version, such as `main:v12`, or of the latest."""
    return f"{learner}:{what}"


def learner_of(player: str) -> str:
    """Return the learner whose version a player is."""
    return player.rpartition(":")[0]


class Opponent(NamedTuple):
    """Somebody whom a learner may meet."""

    name: str
    """Name of a learner, which is met as it is now and learns too if it is the same one;
    `main:latest` for another learner that only plays; or `main:v12` for a frozen version."""
    weight: float
    """Share of the games, compared with those of the others."""
    model: ModelProtocol | None = None
    """Model of a frozen version; None: that of the learner."""


@dataclass(frozen=True, slots=True)
class Pairings:
    """Whom each learner meets: a few opponents, so that each answers many games at once."""

    opponents: Mapping[str, tuple[Opponent, ...]]
    """Opponents by learner."""
