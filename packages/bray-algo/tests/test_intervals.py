"""Intervals against closed forms, exact sums and counted coverage."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bray_algo.league.intervals import beta_cdf, beta_interval, beta_quantile, wilson_interval

UNIT = st.floats(0.001, 0.999)


@given(st.integers(1, 60), st.integers(1, 60), UNIT)
def test_beta_of_whole_numbers_is_a_binomial_tail(a: int, b: int, x: float) -> None:
    n = a + b - 1
    want = sum(math.comb(n, k) * x**k * (1 - x) ** (n - k) for k in range(a, n + 1))
    assert float(beta_cdf(a, b, x)) == pytest.approx(want, rel=1e-9, abs=1e-13)


@given(st.floats(0.05, 500), UNIT)
def test_beta_of_fractions_has_its_closed_forms(a: float, x: float) -> None:
    assert float(beta_cdf(a, 1, x)) == pytest.approx(x**a, rel=1e-9, abs=1e-12)
    assert float(beta_cdf(1, a, x)) == pytest.approx(1 - (1 - x) ** a, rel=1e-8, abs=1e-12)
    assert float(beta_cdf(0.5, 0.5, x)) == pytest.approx(2 / math.pi * math.asin(math.sqrt(x)))
    assert float(beta_cdf(a, a, 0.5)) == pytest.approx(0.5)


def test_beta_at_the_ends_and_far_out() -> None:
    assert beta_cdf([2.0, 2.0], [3.0, 3.0], [0.0, 1.0]).tolist() == [0.0, 1.0]
    # Of a hundred thousand games half won the posterior is a Gaussian of this width.
    lower, upper = beta_interval(50_000, 100_000)
    assert float(upper - lower) == pytest.approx(2 * 1.959964 * 0.5 / math.sqrt(100_000), rel=1e-4)


@settings(max_examples=15)
@given(st.floats(0.5, 200), st.floats(0.5, 200), st.floats(0.01, 0.99))
def test_quantiles_invert_the_distribution(a: float, b: float, probability: float) -> None:
    assert float(beta_cdf(a, b, beta_quantile(a, b, probability))) == pytest.approx(probability)


@given(st.integers(0, 300), st.integers(1, 300), st.floats(0.5, 0.999))
def test_wilson_bounds_solve_the_score_equation(won: int, games: int, confidence: float) -> None:
    won = min(won, games)
    lower, upper = wilson_interval(won, games, confidence)
    rate = won / games
    assert 0 <= lower <= rate <= upper <= 1
    for bound in (float(lower), float(upper)):
        if 1e-9 < bound < 1 - 1e-9:  # |rate − p| = z √(p (1 − p) / n)
            z = abs(rate - bound) / math.sqrt(bound * (1 - bound) / games)
            assert math.erf(z / math.sqrt(2)) == pytest.approx(confidence, abs=1e-6)


@pytest.mark.parametrize("interval", [wilson_interval, beta_interval])
@pytest.mark.parametrize("chance", [0.5, 0.85, 0.98])
def test_intervals_cover_the_truth_as_often_as_they_say(interval: Any, chance: float) -> None:
    games = np.full(4000, 60)
    lower, upper = interval(np.random.default_rng(0).binomial(games, chance), games)
    assert 0.92 < ((lower <= chance) & (chance <= upper)).mean() <= 1.0


def test_without_a_game_nothing_is_known() -> None:
    assert [float(bound) for bound in wilson_interval(0, 0)] == [0.0, 1.0]
    assert [float(bound) for bound in beta_interval(0, 0)] == pytest.approx([0.025, 0.975])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, 2), "score: expected 0 to the finite number of games"),
        ((-1, 2), "score"),
        ((math.nan, 2), "score"),
        ((1, math.inf), "score"),
        (([1, 2], [3]), r"games: expected shape \(2,\), got \(1,\)"),
        ((1, 2, 1.0), "confidence: expected between 0 and 1, got 1.0"),
    ],
)
def test_nonsense_is_refused(arguments: Any, message: str) -> None:
    for interval in (wilson_interval, beta_interval):
        with pytest.raises(ValueError, match=message):
            interval(*arguments)
    with pytest.raises(ValueError, match="prior_games: expected a positive number, got 0"):
        beta_interval(1, 2, prior_games=0)
