"""Intervals of a win rate from counted games: Wilson's and the Beta posterior's, vectorised.

A score is the wins plus half the draws; a draw varies less than a win or a loss, so with draws the
intervals are wider than they need be. Counts may be fractions, such as those that decay.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bray_algo.validation.scalars import check_confidence, check_fraction, check_positive

Floats = npt.NDArray[np.float64]

_TINY = 1e-300
_STEPS = 100


class ConfidenceInterval(NamedTuple):
    """Bounds of each win rate or rating, in the shape of what they were computed from."""

    lower: Floats
    upper: Floats


def wilson_interval(
    score: npt.ArrayLike, games: npt.ArrayLike, confidence: float = 0.95
) -> ConfidenceInterval:
    """Return Wilson's score interval: 0 to 1 without a game, and never a point.

    Wilson 1927, "Probable inference, the law of succession, and statistical inference".

    Args:
        score: Wins plus half the draws, any shape, 0 to games.
        games: Number of games, in the same shape.
        confidence: Probability that both bounds hold, above 0 and below 1; either alone holds with
            (1 + confidence) / 2. Usually 0.95; higher ones give wider intervals.

    Raises:
        ValueError: a score is negative or above its games, shapes differ, or the confidence is
            not between 0 and 1.
    """
    score, games = _counts(score, games, confidence)
    z2 = NormalDist().inv_cdf((1 + confidence) / 2) ** 2
    rate = np.divide(score, games, out=np.full(games.shape, 0.5), where=games > 0)
    centre = (rate * games + z2 / 2) / (games + z2)
    half = np.sqrt(z2 * (games * rate * (1 - rate) + z2 / 4)) / (games + z2)
    return ConfidenceInterval(np.clip(centre - half, 0, rate), np.clip(centre + half, rate, 1))


def beta_interval(
    score: npt.ArrayLike, games: npt.ArrayLike, confidence: float = 0.95, prior_games: float = 2.0
) -> ConfidenceInterval:
    """Return the central interval of the Beta posterior of the win rate.

    The prior is Beta(prior_games / 2, prior_games / 2): 2 is uniform, 1 is Jeffreys'. It takes
    seconds for 200 × 200 win rates, where Wilson's takes a millisecond. Other arguments and errors
    are those of `wilson_interval`.
    """
    score, games = _counts(score, games, confidence)
    check_positive("prior_games", prior_games)
    a, b = score + prior_games / 2, games - score + prior_games / 2
    tail = (1 - confidence) / 2
    return ConfidenceInterval(beta_quantile(a, b, tail), beta_quantile(a, b, 1 - tail))


def beta_quantile(a: npt.ArrayLike, b: npt.ArrayLike, probability: float) -> Floats:
    """Return x of I_x(a, b) = probability: Newton's steps, halving where one leaves the bracket.

    Raises:
        ValueError: a or b is not positive and finite, or the probability not 0 to 1.
    """
    check_fraction("probability", probability)
    a, b = _parameters(a, b)
    low, high = np.zeros(a.shape), np.ones(a.shape)
    x: Floats = a / (a + b)
    log_beta = _log_beta(a, b)
    for _ in range(_STEPS):
        error = beta_cdf(a, b, x) - probability
        low, high = np.where(error < 0, x, low), np.where(error < 0, high, x)
        with np.errstate(all="ignore"):
            density = np.exp((a - 1) * np.log(x) + (b - 1) * np.log1p(-x) - log_beta)
            following = x - error / density
        inside = (following > low) & (following < high)  # NaN: not
        following = np.where(inside, following, (low + high) / 2)
        change, x = np.abs(following - x), following
        if change.max(initial=0.0) < 1e-13:
            break
    return x


def beta_cdf(a: npt.ArrayLike, b: npt.ArrayLike, x: npt.ArrayLike) -> Floats:
    """Return the regularised incomplete Beta function I_x(a, b), elementwise.

    The continued fraction of DLMF 8.17.22, where it converges fast, and I_x(a, b) =
    1 − I_{1−x}(b, a) elsewhere.

    Raises:
        ValueError: a or b is not positive and finite, or x not within 0 and 1.
    """
    a, b = _parameters(a, b)
    a, b, x = np.broadcast_arrays(a, b, np.asarray(x, np.float64))
    if not ((x >= 0) & (x <= 1)).all():  # NaN too
        raise ValueError("x: expected 0 to 1, got one outside")
    swapped = x > (a + 1) / (a + b + 2)
    p, q, y = np.where(swapped, b, a), np.where(swapped, a, b), np.where(swapped, 1 - x, x)
    with np.errstate(divide="ignore"):
        log_front = p * np.log(y) + q * np.log1p(-y) - _log_beta(p, q) - np.log(p)
    part = np.exp(log_front) / _continued_fraction(p, q, y)
    chance: Floats = np.where(swapped, 1 - part, part)
    return chance


def _parameters(a: npt.ArrayLike, b: npt.ArrayLike) -> tuple[Floats, Floats]:
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    for name, numbers in (("a", a), ("b", b)):
        if not ((numbers > 0) & np.isfinite(numbers)).all():
            raise ValueError(f"{name}: expected positive numbers, got one that is not")
    return a, b


def _continued_fraction(a: Floats, b: Floats, x: Floats) -> Floats:
    """Return 1 + d₁ / (1 + d₂ / (1 + …)) by Lentz's method as Thompson and Barnett 1986 give it."""
    value, c, d = np.ones(x.shape), np.ones(x.shape), np.zeros(x.shape)
    for k in range(1, 10_000):
        m = k // 2
        if k % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / _away_from_zero(1 + term * d)
        c = _away_from_zero(1 + term / c)
        change = c * d
        value = value * change
        if np.abs(change - 1).max(initial=0.0) < 1e-13:
            break
    return value


def _away_from_zero(x: Floats) -> Floats:
    return np.where(np.abs(x) < _TINY, _TINY, x)


def _log_beta(a: Floats, b: Floats) -> Floats:
    return _log_gamma(a) + _log_gamma(b) - _log_gamma(a + b)


def _log_gamma(x: Floats) -> Floats:
    """Return log Γ(x), x > 0: Stirling's series (DLMF 5.11.1) after x is raised above 10."""
    shift = np.zeros(x.shape)
    for _ in range(10):
        low = x < 10
        shift = shift + np.where(low, np.log(x), 0.0)
        x = np.where(low, x + 1, x)
    inverse = 1 / x
    tail = inverse**2 * (1 / 360 - inverse**2 * (1 / 1260 - inverse**2 / 1680))
    series: Floats = inverse * (1 / 12 - tail) - shift
    main: Floats = (x - 0.5) * np.log(x) - x + 0.5 * np.log(2 * np.pi)
    return main + series


def _counts(score: npt.ArrayLike, games: npt.ArrayLike, confidence: float) -> tuple[Floats, Floats]:
    score, games = np.asarray(score, np.float64), np.asarray(games, np.float64)
    if score.shape != games.shape:
        raise ValueError(f"games: expected shape {score.shape}, got {games.shape}")
    if not ((score >= 0) & (score <= games) & np.isfinite(games)).all():  # NaN too
        raise ValueError("score: expected 0 to the finite number of games, got one outside")
    check_confidence("confidence", confidence)
    return score, games
