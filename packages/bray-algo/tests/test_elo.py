"""Ratings fitted to all games: the first-order condition, an older algorithm, counted coverage."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bray_algo.league.elo import EloFit, elo_expected, fit_elo


def played(rating: Any, num_games: int, seed: int) -> tuple[Any, Any]:
    """Every pair plays so many games; scores and games `[N, N]`."""
    rng = np.random.default_rng(seed)
    n = len(rating)
    score, games = np.zeros((n, n)), np.full((n, n), float(num_games))
    np.fill_diagonal(games, 0)
    for i in range(n):
        for j in range(i):
            score[i, j] = rng.binomial(num_games, elo_expected(rating[i], rating[j]))
            score[j, i] = num_games - score[i, j]
    return score, games


@given(st.integers(0, 200), st.integers(1, 30), st.floats(100, 2000))
def test_the_gradient_of_the_posterior_is_zero(seed: int, num_games: int, prior: float) -> None:
    rng = np.random.default_rng(seed)
    score, games = played(rng.normal(1500, 300, 5), num_games, seed)
    rating = fit_elo(score, games, prior_sigma=prior).rating
    scale = 400 / math.log(10)
    for i in range(5):
        expected = sum(elo_expected(rating[i], rating[j]) for j in range(5) if j != i) * num_games
        pull = (rating[i] - rating.mean()) * scale / prior**2
        assert score[i].sum() - expected == pytest.approx(pull, abs=1e-5)
    assert rating.mean() == pytest.approx(1500)


def test_without_a_prior_it_is_zermelos_iteration() -> None:
    score, games = played(np.array([1200.0, 1500, 1550, 1800]), 200, 0)
    strength = np.ones(4)
    for _ in range(5000):  # Zermelo 1929; Hunter 2004, equation 3
        for i in range(4):
            others = [j for j in range(4) if j != i]
            share = sum(games[i, j] / (strength[i] + strength[j]) for j in others)
            strength[i] = score[i].sum() / share
    want = 400 * np.log10(strength)
    want += 1500 - want.mean()
    assert fit_elo(score, games, prior_sigma=1e6).rating == pytest.approx(want, abs=0.01)


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(1)
    covered, gaps = [], []
    for seed in range(100):
        truth = rng.normal(0, 200, 6)
        fit = fit_elo(*played(truth, 40, seed), mean=truth.mean())
        lower, upper = fit.interval(0.9)
        covered.extend((lower <= truth) & (truth <= upper))
        c = fit.covariance
        gap = fit.rating[0] - fit.rating[1] - truth[0] + truth[1]
        gaps.append(gap / math.sqrt(c[0, 0] + c[1, 1] - 2 * c[0, 1]))
    assert 0.85 < np.mean(covered) < 0.95
    assert 0.8 < np.std(gaps) < 1.2  # standard deviations of a difference, from the covariance


def test_more_games_are_surer() -> None:
    few, many = (fit_elo(*played([1500.0, 1600, 1700], n, 0)) for n in (10, 1000))
    assert (many.sigma < few.sigma / 5).all()


def test_who_won_every_game_has_a_finite_rating() -> None:
    fit = fit_elo([[0, 9], [0, 0]], [[0, 9], [9, 0]])
    assert fit.rating[0] - fit.rating[1] > 300
    assert np.isfinite(fit.rating).all()
    assert np.isfinite(fit.sigma).all()
    apart = fit_elo(np.zeros((3, 3)), np.zeros((3, 3)))
    assert apart.rating.tolist() == [1500, 1500, 1500]
    assert fit_elo([[0]], [[0]]).sigma.tolist() == [0]
    lopsided = fit_elo([[0, 1e6], [0, 0]], [[0, 1e6], [1e6, 0]], prior_sigma=1e5)
    assert np.isfinite(lopsided.rating).all()


def test_two_hundred_players() -> None:
    truth = np.random.default_rng(0).normal(1500, 250, 200)
    rng = np.random.default_rng(1)
    games = np.full((200, 200), 20.0)
    np.fill_diagonal(games, 0)
    chance = 1 / (1 + 10 ** ((truth - truth[:, None]) / 400))
    upper = np.triu(rng.binomial(20, chance), 1)
    score = upper + np.tril(20 - upper.T, -1)
    fit: EloFit = fit_elo(score, games, mean=truth.mean())
    assert np.sqrt(np.mean((fit.rating - truth) ** 2)) < 12
    assert np.mean(np.abs(fit.rating - truth) < 2 * fit.sigma) > 0.9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[0, 1]], [[0, 1]]), r"score: expected \[N, N\], got shape \(1, 2\)"),
        (([[0, 1], [0, 0]], [[0]]), r"games: expected shape \(2, 2\), got \(1, 1\)"),
        (
            ([[0, 1], [1, 0]], [[0, 1], [1, 0]]),
            "score: expected 0 or more, score \\+ its transpose",
        ),
        (([[0, -1], [1, 0]], [[0, 0], [0, 0]]), "score: expected 0 or more"),
    ],
)
def test_nonsense_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit_elo(*arguments)
    with pytest.raises(ValueError, match="prior_sigma: expected a positive number, got 0"):
        fit_elo([[0]], [[0]], prior_sigma=0)
