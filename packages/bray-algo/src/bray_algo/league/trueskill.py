"""Gaussian ratings of two players with draws: a skill and how sure it is.

Herbrich, Minka and Graepel 2006, "TrueSkill: a Bayesian skill rating system". A player's
performance in a game is Gaussian around the skill, standard deviation β; the greater wins by more
than ε, else the game is drawn. For two players the paper's message passing is one step, in closed
form.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

from bray_algo.validation.scalars import (
    check_confidence,
    check_not_negative,
    check_number,
    check_positive,
)

_NORMAL = NormalDist()


class TrueSkillRating(NamedTuple):
    """Belief about a player's skill: a Gaussian."""

    mu: float = 25.0
    """Mean of the skill."""
    sigma: float = 25.0 / 3
    """Standard deviation of the skill: how unsure the belief is."""

    @property
    def conservative(self) -> float:
        """μ − 3 σ, what the skill exceeds almost surely: the paper's leader board."""
        return self.mu - 3 * self.sigma

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return the bounds of the skill.

        Raises:
            ValueError: the confidence is not between 0 and 1.
        """
        check_confidence("confidence", confidence)
        reach = _NORMAL.inv_cdf((1 + confidence) / 2) * self.sigma
        return self.mu - reach, self.mu + reach


class GameChances(NamedTuple):
    """Chances of one game from the first player's point of view; they add up to 1."""

    win: float
    draw: float
    loss: float

    @property
    def score(self) -> float:
        """The expected score, win + draw / 2."""
        return self.win + self.draw / 2


def update(
    one: TrueSkillRating,
    other: TrueSkillRating,
    score: float,
    *,
    beta: float = 25.0 / 6,
    tau: float = 25.0 / 300,
    draw_probability: float = 0.1,
) -> tuple[TrueSkillRating, TrueSkillRating]:
    """Return both ratings after a game of score 1 (the first won), 0.5 (drawn) or 0 (lost).

    Args:
        one: Rating of the first player before the game.
        other: Rating of the second player.
        score: Score of the first player: 1, 0.5 or 0.
        beta: Standard deviation β of a performance, usually half of the first σ. A gap of β in
            skill gives 76 % to win; the larger β, the more a game counts as luck.
        tau: Deviation τ added to the uncertainty before each game, σ² + τ², since skills change;
            usually σ / 100. At 0 old players hardly move any more; large ones never settle.
        draw_probability: Probability of a draw between two equal players, which fixes the margin ε;
            0 in games without draws.

    Raises:
        ValueError: the score is not 1, 0.5 or 0, a draw has probability 0, or a number is out of
            its range.
    """
    if score not in (0.0, 0.5, 1.0):
        raise ValueError(f"score: expected 1, 0.5 or 0, got {score!r}")
    margin = _margin(beta, draw_probability)
    if score == 0.5 and not draw_probability:
        raise ValueError("draw_probability: expected more than 0 with a draw, got 0")
    check_not_negative("tau", tau)
    _check_ratings(one, other)
    sign = -1.0 if score == 0.0 else 1.0
    # Skills may have changed since the last game.
    variances = one.sigma**2 + tau**2, other.sigma**2 + tau**2
    c = math.sqrt(2 * beta**2 + sum(variances))
    gap = sign * (one.mu - other.mu) / c
    v, w = _draw(gap, margin / c) if score == 0.5 else _win(gap - margin / c)
    means = one.mu + sign * variances[0] / c * v, other.mu - sign * variances[1] / c * v
    new = [
        TrueSkillRating(mean, math.sqrt(variance * max(1 - variance / c**2 * w, 1e-12)))
        for mean, variance in zip(means, variances, strict=True)
    ]
    return new[0], new[1]


def chances(
    one: TrueSkillRating,
    other: TrueSkillRating,
    *,
    beta: float = 25.0 / 6,
    draw_probability: float = 0.1,
) -> GameChances:
    """Return how likely the first player is to win, draw and lose; see `update` for arguments."""
    _check_ratings(one, other)
    margin = _margin(beta, draw_probability)
    c = math.sqrt(2 * beta**2 + one.sigma**2 + other.sigma**2)
    win = _NORMAL.cdf((one.mu - other.mu - margin) / c)
    loss = _NORMAL.cdf((other.mu - one.mu - margin) / c)
    return GameChances(win, max(0.0, 1 - win - loss), loss)


def _check_ratings(*ratings: TrueSkillRating) -> None:
    for rating in ratings:
        check_number("mu", rating.mu)
        check_not_negative("sigma", rating.sigma)


def _margin(beta: float, draw_probability: float) -> float:
    """Return ε: two equal skills draw with this probability, 2 Φ(ε / (√2 β)) − 1."""
    check_positive("beta", beta)
    if not 0 <= draw_probability < 1:
        raise ValueError(f"draw_probability: expected 0 to below 1, got {draw_probability}")
    return _NORMAL.inv_cdf((draw_probability + 1) / 2) * math.sqrt(2) * beta


def _win(x: float) -> tuple[float, float]:
    """Return v and w of a decided game at x = t − ε: the shift and shrinkage of the difference."""
    v = _hazard(x)
    return v, v * (v + x)


def _draw(gap: float, margin: float) -> tuple[float, float]:
    """Return v and w of a draw; both divided by φ(ε − |t|), so that nothing underflows."""
    a = abs(gap)
    if margin < 1e-6:  # the limit: the difference was exactly 0
        return -gap, 1.0
    ratio = math.exp(-2 * a * margin)  # φ(−ε − a) / φ(ε − a)
    mass = 1 / _hazard(margin - a) - ratio / _hazard(-margin - a)
    v = (ratio - 1) / mass
    w = v * v + ((margin - a) + (margin + a) * ratio) / mass
    return math.copysign(v, -gap), w


def _hazard(x: float) -> float:
    """Return φ(x) / Φ(x), by its asymptotic series where Φ underflows."""
    if x < -30:
        return -x / (1 - 1 / x**2 + 3 / x**4 - 15 / x**6)
    return math.exp(-x * x / 2) / (math.sqrt(math.pi / 2) * math.erfc(-x / math.sqrt(2)))
