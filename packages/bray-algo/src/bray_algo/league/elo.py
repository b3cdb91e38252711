"""Elo ratings: game by game, and fitted to all games at once with intervals."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bray_algo.league.intervals import ConfidenceInterval, Floats
from bray_algo.validation.scalars import (
    check_confidence,
    check_fraction,
    check_not_negative,
    check_number,
    check_positive,
)

_SCALE = 400 / math.log(10)
"""Elo points of one natural-log unit of odds."""
_STEPS = 100


def elo_expected(rating: float, opponent: float) -> float:
    """Return the expected score of a player, 0 to 1: 1 / (1 + 10^((R_b − R_a) / 400)).

    Elo 1978, "The rating of chessplayers, past and present", with the logistic curve.

    Raises:
        ValueError: a rating is not finite.
    """
    check_number("rating", rating)
    check_number("opponent", opponent)
    distance = min((opponent - rating) / 400.0, 300.0)  # 10^309 is beyond a float
    return float(1.0 / (1.0 + 10.0**distance))


def elo_update(
    rating: float, opponent: float, score: float, k: float = 16.0
) -> tuple[float, float]:
    """Return both ratings after a game of score 1 (won), 0.5 (drawn) or 0 (lost).

    R' = R + k (score − expected), the opponent's the other way.

    Args:
        rating: Rating of the player before the game, in Elo points.
        opponent: Rating of the opponent before the game.
        score: Score of the player, 0 to 1.
        k: Points that a surprise moves, usually 8 to 32. Large ones follow a learner fast and are
            noisy; small ones take many games to move.

    Raises:
        ValueError: the score is not within 0 and 1, k negative, or a rating not finite.
    """
    check_fraction("score", score)
    check_not_negative("k", k)
    change = k * (score - elo_expected(rating, opponent))
    return rating + change, opponent - change


class EloFit(NamedTuple):
    """Ratings of a population in Elo points, `[N]` each."""

    rating: Floats
    """Most probable ratings; their mean is the fit's `mean`."""
    sigma: Floats
    """Standard deviation of each, relative to the mean of all."""
    covariance: Floats
    """Covariance of the ratings, `[N, N]`: the variance of i − j is C_ii + C_jj − 2 C_ij."""

    def interval(self, confidence: float = 0.95) -> ConfidenceInterval:
        """Return the bounds of each rating, `[N]` each.

        Raises:
            ValueError: the confidence is not between 0 and 1.
        """
        check_confidence("confidence", confidence)
        reach = NormalDist().inv_cdf((1 + confidence) / 2) * self.sigma
        return ConfidenceInterval(self.rating - reach, self.rating + reach)


def fit_elo(
    score: npt.ArrayLike,
    games: npt.ArrayLike,
    *,
    mean: float = 1500.0,
    prior_sigma: float = 700.0,
) -> EloFit:
    """Return the ratings that explain a payoff matrix best: the Bradley–Terry model.

    P(i beats j) = 1 / (1 + e^(θ_j − θ_i)) (Bradley and Terry 1952, "Rank analysis of incomplete
    block designs"), a logistic regression, fitted by Newton's method; a draw counts as half a win.
    A Gaussian prior keeps those finite who won every game, and those apart who never met. The
    intervals are Laplace's: the curvature at the most probable ratings.

    Args:
        score: Wins plus half the draws of the row's player, `[N, N]` (`table.wins + table.draws
            / 2`); the diagonal is not read.
        games: Number of games of each pair, symmetric, `[N, N]` (`table.games`).
        mean: Mean of all ratings, in Elo points; 1500 by custom.
        prior_sigma: Standard deviation of a rating around the mean before any game, in Elo points,
            usually 300 to 1000. A small one pulls players of few games to the mean; a large one
            lets a player that has won every game run away.

    Raises:
        ValueError: shapes are not `[N, N]`, or the scores of a pair do not add up to its games.
    """
    score, games = _checked(score, games)
    check_positive("prior_sigma", prior_sigma)
    check_number("mean", mean)
    precision = (_SCALE / prior_sigma) ** 2
    theta = np.zeros(len(score))
    for _ in range(_STEPS):
        gradient, curvature = _derivatives(theta, score, games, precision)
        step: Floats = np.linalg.solve(curvature, gradient).astype(np.float64)
        theta = _climb(theta, step, lambda at: _value(at, score, precision))
        if np.abs(step).max() < 1e-9:
            break
    # Only differences are known, so the covariance is that of θ less its mean.
    centre = np.eye(len(theta)) - 1 / len(theta)
    covariance = centre @ np.linalg.inv(curvature) @ centre * _SCALE**2
    sigma = np.sqrt(np.diagonal(covariance).clip(min=0))
    return EloFit(mean + _SCALE * (theta - theta.mean()), sigma, covariance)


def _climb(theta: Floats, step: Floats, value: Callable[[Floats], float]) -> Floats:
    """Go the step, halved as often as it takes not to go down."""
    start = value(theta)
    while value(theta + step) < start - 1e-12 * abs(start) and np.abs(step).max() > 1e-9:
        step = step / 2
    return theta + step


def _value(theta: Floats, score: Floats, precision: float) -> float:
    """Return the log posterior up to a constant."""
    log_likelihood = -(score * np.logaddexp(0, theta - theta[:, None])).sum()
    return float(log_likelihood - precision / 2 * (theta**2).sum())


def _derivatives(
    theta: Floats, score: Floats, games: Floats, precision: float
) -> tuple[Floats, Floats]:
    """Return the gradient `[N]` and minus the Hessian `[N, N]` of the log posterior."""
    chance = 1 / (1 + np.exp(-np.clip(theta[:, None] - theta, -500, 500)))
    gradient = (score - games * chance).sum(1) - precision * theta
    # Games that were never in doubt say little: p (1 − p) is near 0.
    weight = games * chance * (1 - chance)
    return gradient, np.diag(weight.sum(1) + precision) - weight


def _checked(score: npt.ArrayLike, games: npt.ArrayLike) -> tuple[Floats, Floats]:
    score, games = np.array(score, np.float64), np.array(games, np.float64)
    if score.ndim != 2 or score.shape[0] != score.shape[1] or not score.size:
        raise ValueError(f"score: expected [N, N], got shape {score.shape}")
    if games.shape != score.shape:
        raise ValueError(f"games: expected shape {score.shape}, got {games.shape}")
    np.fill_diagonal(score, 0)
    np.fill_diagonal(games, 0)
    if not (np.isfinite(score) & (score >= 0)).all() or not np.allclose(score + score.T, games):
        raise ValueError("score: expected 0 or more, score + its transpose = games, got otherwise")
    return score, games
