"""Who plays which side of a match, drawn before each game where it is played."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bray.games.pairings import LATEST, Opponent, Pairings, learner_of, player_name
from bray.games.sides import Sides
from bray_actor.multi_agent.seat import Seat
from bray_core.errors import ConfigError

_PHASE = "opponent"
"""Label of the opponents' metrics."""


class MatchCast:
    """Draws for each game a learner, its side, and its opponents on the others.

    A learner that meets itself as it is now plays all sides, and all are recorded. Nobody else than
    the learner that was drawn is recorded. Until the first `Pairings` come every learner meets
    itself.

    Args:
        sides: Agents by side, as `bray.games.sides.sides_of` returns them.
        learners: Seats of those who learn, by name, with their buffers.
        shares: Share of the games by learner, compared with those of the others; None: all alike.

    Raises:
        ConfigError: there is no learner, a seat has another name or no buffer, or the shares are
            not those of the learners.

    Use it where games are played:

        cast = MatchCast(sides_of(environment.agents), {"main": Seat(...)})
        cast.tell(matchmaker.pairings())
        seats = cast.draw(random.Random(0))  # by agent
    """

    def __init__(
        self,
        sides: Sides,
        learners: Mapping[str, Seat],
        *,
        shares: Mapping[str, float] | None = None,
    ) -> None:
        _check_learners(learners)
        self._sides = dict(sides)
        self._learners = dict(learners)
        self._shares = _checked_shares(learners, shares)
        self._weights: dict[str, dict[str, float]] = {name: {name: 1.0} for name in learners}
        self._opponents: dict[str, Seat] = {}

    def draw(self, generator: random.Random) -> Mapping[str, Seat]:
        """Return the seat of each agent of the next game."""
        learner = _pick(self._shares, generator)
        mine = generator.choice(list(self._sides))
        seats: dict[str, Seat] = {}
        for side, agents in self._sides.items():
            name = learner if side == mine else _pick(self._weights[learner], generator)
            seats.update(dict.fromkeys(agents, self._seat(name)))
        return seats

    def tell(self, news: Any) -> None:
        """Take new pairings; games under way go on with their opponents.

        Args:
            news: `Pairings` of all learners.

        Raises:
            ConfigError: it is something else, or says nothing of a learner, or names an opponent
                without a model.
        """
        if not isinstance(news, Pairings):
            raise ConfigError(f"news: expected Pairings, got {type(news).__name__}")
        missing = [name for name in self._learners if not news.opponents.get(name)]
        if missing:
            raise ConfigError(f"news: expected opponents of each learner, got none of {missing}")
        met = [each for name in self._learners for each in news.opponents[name]]
        self._opponents = {
            each.name: self._opponent(each) for each in met if each.name not in self._learners
        }
        self._weights = {
            name: {each.name: each.weight for each in news.opponents[name]}
            for name in self._learners
        }

    def _seat(self, name: str) -> Seat:
        return self._learners.get(name) or self._opponents[name]

    def _opponent(self, opponent: Opponent) -> Seat:
        # A version that is known keeps its model: each has a batch of its own.
        if (known := self._opponents.get(opponent.name)) is not None:
            return known
        learner = self._learners.get(learner_of(opponent.name))
        if learner is None:
            raise ConfigError(
                f"news: expected versions of {list(self._learners)}, got {opponent.name!r}"
            )
        model = opponent.model
        if opponent.name == player_name(learner.name, LATEST):
            model = learner.model
        if model is None:
            raise ConfigError(f"news: expected a model of {opponent.name}, got None")
        config = replace(learner.config, phase=_PHASE)
        return Seat(name=opponent.name, model=model, config=config)


def _check_learners(learners: Mapping[str, Seat]) -> None:
    if not learners:
        raise ConfigError("learners: expected one or more, got none")
    for name, seat in learners.items():
        if seat.name != name:
            raise ConfigError(f"learners.{name}: expected a seat of that name, got {seat.name!r}")
        if seat.buffer is None:
            raise ConfigError(
                f"learners.{name}: expected a seat with a buffer, got none: who records nothing "
                "learns nothing"
            )


def _checked_shares(
    learners: Mapping[str, Seat], shares: Mapping[str, float] | None
) -> dict[str, float]:
    if shares is None:
        return dict.fromkeys(learners, 1.0)
    if set(shares) != set(learners):
        raise ConfigError(f"shares: expected those of {list(learners)}, got {list(shares)}")
    # Not a number fails the comparison, too.
    if not all(0 <= share < float("inf") for share in shares.values()) or not any(shares.values()):
        raise ConfigError(f"shares: expected 0 or more, one above 0, got {dict(shares)}")
    return {name: float(shares[name]) for name in learners}


def _pick(weights: Mapping[str, float], generator: random.Random) -> str:
    return generator.choices(list(weights), list(weights.values()))[0]
