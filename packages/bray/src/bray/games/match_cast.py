"""Who plays which side of a match, drawn before each game where it is played."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bray.games.pairings import LATEST, Opponent, Pairings, learner_of, player_name
from bray.games.side_groups import SideGroups, group_of, group_of_side, one_group
from bray.games.sides import Sides
from bray_actor.multi_agent.seat import Seat
from bray_core.errors import ConfigError

_PHASE = "opponent"
"""Label of the opponents' metrics."""


class MatchCast:
    """Draws for each game a learner, its side, and its opponents on the others.

    A learner that meets itself as it is now plays all sides, and all are recorded. On sides that it
    cannot play itself it meets those who can; as they are now they are recorded, too. Nobody else
    is recorded. Until the first `Pairings` come all meet themselves and each other as they are now.

    Args:
        sides: Agents by side, as `bray.games.sides.sides_of` returns them.
        learners: Seats of those who learn, by name, with their buffers.
        shares: Share of the games by learner, compared with those of the others; None: all alike.
        groups: Which learners may play which sides; None: any of them plays any side.

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
        groups: SideGroups | None = None,
    ) -> None:
        _check_learners(learners)
        self._sides = dict(sides)
        self._learners = dict(learners)
        self._shares = _checked_shares(learners, shares)
        self._groups = groups or one_group(sides, learners)
        self._weights = {name: self._first_weights(name) for name in learners}
        """Weights of a learner's opponents, by learner and by side."""
        self._opponents: dict[str, Seat] = {}

    def _first_weights(self, learner: str) -> dict[str, dict[str, float]]:
        own = group_of(self._groups, learner)
        return {
            side: dict.fromkeys((learner,) if group == own else group.learners, 1.0)
            for group in self._groups
            for side in group.sides
        }

    def draw(self, generator: random.Random) -> Mapping[str, Seat]:
        """Return the seat of each agent of the next game."""
        learner = _pick(self._shares, generator)
        mine = generator.choice(group_of(self._groups, learner).sides)
        seats: dict[str, Seat] = {}
        for side, agents in self._sides.items():
            name = learner if side == mine else _pick(self._weights[learner][side], generator)
            seats.update(dict.fromkeys(agents, self._seat(name)))
        return seats

    def tell(self, news: Any) -> None:
        """Take new pairings; games under way go on with their opponents.

        Args:
            news: `Pairings` of all learners.

        Raises:
            ConfigError: it is something else, or says nothing of a learner, or names an opponent
                without a model, or nobody who may play a side.
        """
        if not isinstance(news, Pairings):
            raise ConfigError(f"news: expected Pairings, got {type(news).__name__}")
        missing = [name for name in self._learners if not news.opponents.get(name)]
        if missing:
            raise ConfigError(f"news: expected opponents of each learner, got none of {missing}")
        met = [each for name in self._learners for each in news.opponents[name]]
        opponents = {
            each.name: self._opponent(each) for each in met if each.name not in self._learners
        }
        self._weights = {name: self._told_weights(name, news) for name in self._learners}
        self._opponents = opponents

    def _told_weights(self, learner: str, news: Pairings) -> dict[str, dict[str, float]]:
        """Return the weights of a learner's opponents on each side that they may play."""
        own, found = group_of(self._groups, learner), {}
        for side in self._sides:
            group = group_of_side(self._groups, side)
            of_side = {e.name: e.weight for e in news.opponents[learner] if group.may_play(e.name)}
            if not of_side and (group != own or len(own.sides) > 1):
                raise ConfigError(
                    f"news: expected opponents of {learner} on side {side!r}, got "
                    f"{[each.name for each in news.opponents[learner]]}"
                )
            found[side] = of_side
        return found

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
