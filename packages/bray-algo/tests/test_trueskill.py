"""The closed form against the posterior's moments, summed on a grid."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bray_algo.league.trueskill import TrueSkillRating, chances, update

BETA, MARGIN_OF_TENTH = 25 / 6, 0.7404665874521482


def normal_cdf(x: Any) -> Any:
    return np.vectorize(lambda t: 0.5 * math.erfc(-t / math.sqrt(2)))(x)


def posterior(one: TrueSkillRating, other: TrueSkillRating, score: float) -> list[float]:
    """Means and deviations of both skills given the result, by summing over pairs of skills."""
    s1 = np.linspace(one.mu - 8 * one.sigma, one.mu + 8 * one.sigma, 301)
    s2 = np.linspace(other.mu - 8 * other.sigma, other.mu + 8 * other.sigma, 301)
    prior = np.exp(-0.5 * ((s1 - one.mu) / one.sigma) ** 2)[:, None]
    prior = prior * np.exp(-0.5 * ((s2 - other.mu) / other.sigma) ** 2)
    gap, noise = s1[:, None] - s2, math.sqrt(2) * BETA
    win = normal_cdf((gap - MARGIN_OF_TENTH) / noise)
    loss = normal_cdf((-gap - MARGIN_OF_TENTH) / noise)
    p = prior * {1.0: win, 0.0: loss, 0.5: 1 - win - loss}[score]
    p = p / p.sum()
    m1, m2 = p.sum(1) @ s1, p.sum(0) @ s2
    v1, v2 = p.sum(1) @ (s1 - m1) ** 2, p.sum(0) @ (s2 - m2) ** 2
    return [float(x) for x in (m1, math.sqrt(v1), m2, math.sqrt(v2))]


@pytest.mark.parametrize("score", [1.0, 0.5, 0.0])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (TrueSkillRating(), TrueSkillRating()),
        (TrueSkillRating(30, 2), TrueSkillRating(20, 5)),
        (TrueSkillRating(10, 6), TrueSkillRating(32, 4)),
    ],
)
def test_an_update_has_the_posteriors_moments(
    one: TrueSkillRating, other: TrueSkillRating, score: float
) -> None:
    got = update(one, other, score, tau=0)
    want = posterior(one, other, score)
    assert [*got[0], *got[1]] == pytest.approx(want, rel=2e-4)


@given(st.floats(-60, 60), st.floats(0.1, 9), st.floats(0.1, 9), st.sampled_from([0, 0.5, 1]))
def test_sides_are_exchangeable_and_games_inform(
    gap: float, sigma: float, sigma_of_other: float, score: float
) -> None:
    one, other = TrueSkillRating(25 + gap, sigma), TrueSkillRating(25, sigma_of_other)
    a, b = update(one, other, score, tau=0)
    d, c = update(other, one, 1 - score, tau=0)
    assert [*a, *b] == pytest.approx([*c, *d])
    assert a.sigma <= one.sigma
    assert b.sigma <= other.sigma
    assert all(map(math.isfinite, (*a, *b)))
    if score == 1:
        assert a.mu >= one.mu
        assert b.mu <= other.mu


@pytest.mark.parametrize("score", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("draw_probability", [1e-12, 1e-5, 0.1, 0.999])
def test_wonders_are_finite(score: float, draw_probability: float) -> None:
    for gap in (-1e5, -300, -30, 0, 30, 300, 1e5):
        got = update(
            TrueSkillRating(gap, 1), TrueSkillRating(0, 1), score, draw_probability=draw_probability
        )
        assert np.isfinite(got).all()
        assert (np.array(got)[:, 1] > 0).all()


def test_a_rare_draw_is_the_limit_of_narrow_margins() -> None:
    one, other = TrueSkillRating(27, 3), TrueSkillRating(22, 5)
    near, limit = (update(one, other, 0.5, draw_probability=p) for p in (1e-4, 1e-9))
    assert [*near[0], *near[1]] == pytest.approx([*limit[0], *limit[1]], abs=1e-5)


@given(st.floats(-40, 40), st.floats(0, 0.9))
def test_chances_add_up(gap: float, draw_probability: float) -> None:
    one, other = TrueSkillRating(25 + gap, 3), TrueSkillRating(25, 4)
    got = chances(one, other, draw_probability=draw_probability)
    back = chances(other, one, draw_probability=draw_probability)
    assert sum(got) == pytest.approx(1)
    assert [*got] == pytest.approx([*reversed(back)], abs=1e-12)
    assert got.score == pytest.approx(1 - back.score)


def test_chances_are_the_games_frequencies() -> None:
    rng = np.random.default_rng(0)
    one, other = TrueSkillRating(27, 2), TrueSkillRating(25, 1)
    gap = rng.normal(2, math.sqrt(4 + 1 + 2 * BETA**2), 400_000)
    want = [(gap > MARGIN_OF_TENTH).mean(), (abs(gap) < MARGIN_OF_TENTH).mean()]
    assert [*chances(one, other)][:2] == pytest.approx(want, abs=0.003)
    even = chances(TrueSkillRating(0, 0), TrueSkillRating(0, 0), draw_probability=0.3)
    assert even.draw == pytest.approx(0.3)


@pytest.mark.parametrize("seed", range(3))
def test_skills_are_found_as_surely_as_it_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    skill = rng.normal(25, 25 / 3, 20)
    believed = [TrueSkillRating()] * 20
    for _ in range(3000):
        i, j = rng.choice(20, 2, replace=False)
        gap = skill[i] - skill[j] + rng.normal(0, math.sqrt(2) * BETA)
        score = 0.5 if abs(gap) < MARGIN_OF_TENTH else float(gap > 0)
        believed[i], believed[j] = update(believed[i], believed[j], score, tau=0)
    mu, sigma = np.array(believed).T
    error = (mu - mu.mean()) - (skill - skill.mean())
    assert np.sqrt(np.mean(error**2)) < 1.5
    assert np.sqrt(np.mean((error / sigma) ** 2)) < 1.5
    lower, upper = believed[0].interval(0.95)
    assert believed[0].conservative < lower < mu[0] < upper


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"score": 0.7}, "score: expected 1, 0.5 or 0, got 0.7"),
        ({"score": 0.5, "draw_probability": 0}, "draw_probability: expected more than 0 with a"),
        ({"score": 1, "draw_probability": 1}, "draw_probability: expected 0 to below 1, got 1"),
        ({"score": 1, "beta": 0}, "beta: expected a positive number, got 0"),
        ({"score": 1, "tau": -1}, "tau: expected 0 or more, got -1"),
    ],
)
def test_nonsense_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        update(TrueSkillRating(), TrueSkillRating(), **arguments)
