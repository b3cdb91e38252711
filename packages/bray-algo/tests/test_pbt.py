from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bray_algo import pbt
from bray_algo.pbt import HyperparameterRange

scores_ = st.lists(st.one_of(st.integers(-5, 5), st.just(math.nan)), min_size=1, max_size=30)
RANGES = {
    "lr": HyperparameterRange(low=1e-5, high=1e-2),
    "entropy": HyperparameterRange(low=0, high=1, scale="linear"),
}


def worth(score: float) -> float:
    return -math.inf if math.isnan(score) else score


@given(scores_, st.floats(0.05, 0.5), st.integers(0, 100))
def test_truncation_copies_from_the_best_to_the_worst(
    scores: list[float], fraction: float, seed: int
) -> None:
    sources = pbt.exploit_truncation(scores, np.random.default_rng(seed), fraction=fraction)
    known = sorted(map(worth, scores))
    count = min(max(1, int(len(scores) * fraction)), len(scores) // 2)
    moved = [(member, source) for member, source in enumerate(sources) if member != source]
    assert len(moved) <= count
    for member, source in moved:
        assert worth(scores[member]) < worth(scores[source])
        assert worth(scores[member]) <= known[count - 1]
        assert worth(scores[source]) >= known[-count]


def test_truncation_of_distinct_scores_moves_exactly_the_fraction_evenly() -> None:
    scores = np.arange(10.0)
    drawn = np.array(
        [pbt.exploit_truncation(scores, np.random.default_rng(seed)) for seed in range(2000)]
    )
    assert (drawn[:, 2:] == np.arange(2, 10)).all()
    assert set(drawn[:, :2].ravel()) == {8, 9}
    assert (drawn[:, 0] == 9).mean() == pytest.approx(0.5, abs=5 * 0.5 / math.sqrt(2000))


def test_the_diverged_copies_and_the_alone_stays() -> None:
    rng = np.random.default_rng(0)
    assert pbt.exploit_truncation([math.nan, 1.0, 2.0, 3.0], rng) == [3, 1, 2, 3]
    assert pbt.exploit_truncation([1.0], rng) == [0]
    assert pbt.exploit_tournament([1.0], rng) == [0]
    assert pbt.exploit_truncation([2.0] * 5, rng) == list(range(5))


@given(scores_, st.integers(0, 100))
def test_in_a_tournament_none_copies_the_weaker(scores: list[float], seed: int) -> None:
    sources = pbt.exploit_tournament(scores, np.random.default_rng(seed))
    for member, source in enumerate(sources):
        assert member == source or worth(scores[member]) < worth(scores[source])


def test_a_tournament_meets_all_others_evenly() -> None:
    drawn = [pbt.exploit_tournament([0, 1, 2], np.random.default_rng(s))[0] for s in range(2000)]
    assert set(drawn) == {1, 2}
    assert drawn.count(1) / 2000 == pytest.approx(0.5, abs=5 * 0.5 / math.sqrt(2000))


def test_exploring_multiplies_or_draws_within_the_range() -> None:
    rng = np.random.default_rng(0)
    before = {"lr": 1e-3, "entropy": 0.95, "fixed": 7.0}
    factors = {"lr": set(), "entropy": set()}
    for _ in range(50):
        after = pbt.explore(before, RANGES, rng)
        assert after["fixed"] == 7.0
        for name, seen in factors.items():
            seen.add(round(after[name] / before[name], 6))
    assert factors["lr"] == {0.8, 1.2}
    assert factors["entropy"] == {0.8, round(1 / 0.95, 6)}  # held at 1
    assert before == {"lr": 1e-3, "entropy": 0.95, "fixed": 7.0}
    drawn = [pbt.explore(before, RANGES, rng, resample=1.0) for _ in range(2000)]
    logs = np.log10([row["lr"] for row in drawn])
    assert (logs.min(), logs.max()) == pytest.approx((-5, -2), abs=0.02)
    assert logs.mean() == pytest.approx(-3.5, abs=5 * 3 / math.sqrt(12 * 2000))
    assert np.mean([row["entropy"] for row in drawn]) == pytest.approx(0.5, abs=0.04)


def test_a_generation() -> None:
    rng = np.random.default_rng(0)
    population = [{"lr": 1e-4 * (i + 1), "entropy": 0.1} for i in range(5)]
    moves = pbt.evolve([0.0, 4.0, 1.0, 2.0, 3.0], population, RANGES, rng)
    assert [move.source for move in moves] == [1, 1, 2, 3, 4]
    for member in range(1, 5):
        assert moves[member].hyperparameters == population[member]
    ratio = moves[0].hyperparameters["lr"] / population[1]["lr"]
    assert round(ratio, 6) in (0.8, 1.2)


def test_a_population_finds_the_best_learning_rate() -> None:
    # Score of a member: how near its rate is to 1e-3, on a log scale.
    rng = np.random.default_rng(0)
    ranges = {"lr": HyperparameterRange(low=1e-6, high=1.0)}
    population: list[dict[str, float]] = [{"lr": ranges["lr"].draw(rng)} for _ in range(10)]
    for _ in range(60):
        scores = [-abs(math.log10(member["lr"]) + 3) for member in population]
        population = [m.hyperparameters for m in pbt.evolve(scores, population, ranges, rng)]
    assert max(-abs(math.log10(member["lr"]) + 3) for member in population) > -0.05


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda r: pbt.exploit_truncation([], r), r"scores: expected \[P\], not empty"),
        (lambda r: pbt.exploit_tournament([[1.0]], r), r"got shape \(1, 1\)"),
        (lambda r: pbt.exploit_truncation([1, 2], r, fraction=0.6), "fraction: .* got 0.6"),
        (lambda r: pbt.explore({"a": 1}, RANGES, r), r"ranges: .* got \['entropy', 'lr'\]"),
        (lambda r: pbt.explore({}, {}, r, factors=[]), r"factors: expected positive"),
        (lambda r: pbt.explore({}, {}, r, factors=[0.0]), r"factors: expected positive"),
        (lambda r: pbt.explore({}, {}, r, resample=2), "resample: expected 0 to 1, got 2"),
        (lambda r: pbt.evolve([1, 2], [{}], {}, r), "expected one for each of 2 scores, got 1"),
        (lambda r: HyperparameterRange(low=1, high=1), "low, high: expected low < high"),
        (lambda r: HyperparameterRange(low=0, high=1), "positive if scale='log', got 0, 1"),
    ],
)
def test_nonsense_is_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(np.random.default_rng(0))
