"""How good the players of a league are: Elo and TrueSkill ratings with their intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from bray_algo.league.elo import fit_elo
from bray_algo.league.payoff import PayoffTable
from bray_algo.league.trueskill import TrueSkillRating, update


class PlayerRating(NamedTuple):
    """How good a player is, and how sure that is."""

    rating: float
    """Most probable rating."""
    low: float
    """Lower bound of its interval."""
    high: float
    """Upper bound of its interval."""


def elo_ratings(payoff: PayoffTable, confidence: float) -> dict[str, PlayerRating]:
    """Return the Elo rating of each player of a payoff table; their mean is 1500.

    Args:
        payoff: Results of the players.
        confidence: Probability that a rating lies within its interval.
    """
    fit = fit_elo(payoff.wins + payoff.draws / 2, payoff.games)
    low, high = fit.interval(confidence)
    columns = zip(payoff.players, fit.rating, low, high, strict=True)
    return {name: PlayerRating(*map(float, numbers)) for name, *numbers in columns}


class SkillRatings:
    """TrueSkill ratings, moved by each game.

    Args:
        players: Names of the players to begin with.
    """

    def __init__(self, players: Iterable[str]) -> None:
        self._skills = {name: TrueSkillRating() for name in players}

    def record(self, one: str, other: str, score: float) -> None:
        """Move the ratings of two players by a game; score 1: the one won."""
        skills = self._skills
        skills[one], skills[other] = update(skills[one], skills[other], score)

    def freeze(self, learner: str, name: str, *, resets: bool) -> None:
        """Add a version of a learner, which is as good as that is now.

        Args:
            learner: Name of the learner.
            name: Name of the version.
            resets: Whether the learner begins anew.
        """
        self._skills[name] = self._skills[learner]
        if resets:
            self._skills[learner] = TrueSkillRating()

    def drop(self, name: str) -> None:
        """Forget a player."""
        del self._skills[name]

    def ratings(self, confidence: float) -> dict[str, PlayerRating]:
        """Return the rating of each player.

        Args:
            confidence: Probability that a rating lies within its interval.
        """
        return {
            name: PlayerRating(skill.mu, *skill.interval(confidence))
            for name, skill in self._skills.items()
        }

    def state(self) -> dict[str, list[float]]:
        """Return all ratings as JSON takes them."""
        return {name: [skill.mu, skill.sigma] for name, skill in self._skills.items()}

    def restore(self, state: Mapping[str, Sequence[float]]) -> None:
        """Take up what `state` returned."""
        self._skills = {str(n): TrueSkillRating(float(m), float(s)) for n, (m, s) in state.items()}
