"""The reservoir's sample has the probabilities of its definition."""

import itertools
import math

import numpy as np
import pytest

from bray_buffer import Reservoir, ReservoirConfig
from bray_core import nested
from bray_core.errors import ClosedError, ConfigError, DeadlineError, SpecError
from bray_core.layout import Layout, Packed

LAYOUT = Layout(nested.spec({"x": np.int64(0)}))


def rows(start, stop):
    return Packed(LAYOUT, LAYOUT.pack({"x": np.arange(start, stop)}))


def make(capacity, seed=0, batch_size=1):
    return Reservoir(LAYOUT, ReservoirConfig(capacity=capacity, batch_size=batch_size, seed=seed))


def sample(reservoir):
    return sorted(reservoir.sample().tree["x"].tolist())


def test_every_set_has_its_exact_probability():
    """Chi-square over all 10 pairs of 5: 9 degrees of freedom, 33.7 is exceeded once in 10,000."""
    weights = np.array([1.0, 2, 3, 4, 5])
    total = weights.sum()
    exact = {
        (i, j): weights[i]
        * weights[j]
        / total
        * (1 / (total - weights[i]) + 1 / (total - weights[j]))
        for i, j in itertools.combinations(range(5), 2)
    }
    assert math.isclose(sum(exact.values()), 1)
    trials = 5000
    counts = dict.fromkeys(exact, 0)
    for seed in range(trials):
        reservoir = make(2, seed)
        cut = seed % 6  # however the stream is cut into pushes
        reservoir.push(rows(0, cut), weights=weights[:cut])
        reservoir.push(rows(cut, 5), weights=weights[cut:])
        counts[tuple(sample(reservoir))] += 1
    chi_square = sum((counts[p] - trials * exact[p]) ** 2 / (trials * exact[p]) for p in exact)
    assert chi_square < 33.7


def test_inclusion_agrees_with_the_definition_by_keys():
    """A-ES: the k largest of u^(1/w). Each frequency within 5 standard deviations."""
    n, k, trials = 100, 10, 1000
    weights = np.random.default_rng(1).lognormal(0, 1.5, n)
    weights[:3] = 1e-3, 1e3, 30
    keys = np.log(np.random.default_rng(2).random((20 * trials, n))) / weights
    largest = np.argpartition(keys, -k, axis=1)[:, -k:]
    expected = np.bincount(largest.ravel(), minlength=n) / (20 * trials)
    found = np.zeros(n)
    for seed in range(trials):
        reservoir = make(k, seed)
        reservoir.push(rows(0, n), weights=weights)
        found[sample(reservoir)] += 1
    spread = np.sqrt(expected * (1 - expected) / trials * (1 + 1 / 20)) + 1 / trials
    assert np.all(np.abs(found / trials - expected) < 5 * spread)


class Counting:
    def __init__(self, random):
        self._random, self.draws = random, 0

    def random(self):
        self.draws += 1
        return self._random.random()


def test_what_is_jumped_over_costs_no_random_number():
    """k entries of two numbers each to fill it, then about k·log(n/k) of two; here ±50 %."""
    k, n = 50, 100_000
    reservoir = make(k)
    reservoir._random = counting = Counting(reservoir._random)
    for start in range(0, n, 1000):
        reservoir.push(rows(start, start + 1000))
    later = counting.draws - k
    assert (
        1 < later / (2 * k * math.log(n / k)) < 1.5 or 0.5 < later / (2 * k * math.log(n / k)) < 1
    )
    assert reservoir.stats() == {"pushed": n, "popped": 0, "queued": k}
    assert len(set(sample(reservoir))) == k


@pytest.mark.parametrize("scale", [1e-300, 1e-12, 1e12, 1e300])
def test_only_the_ratios_of_weights_matter(scale):
    """Whatever their size: numbers near the limits of float64 overflow nothing."""
    hits = 0
    for seed in range(200):
        reservoir = make(1, seed)
        reservoir.push(rows(0, 4), weights=np.array([1, 1, 1, 7]) * scale)
        hits += sample(reservoir) == [3]
    assert 105 < hits < 175  # Binomial(200, 0.7): 5 standard deviations are 32


def test_a_batch_has_different_segments_each_equally_often():
    reservoir = make(10, batch_size=4)
    reservoir.push(rows(0, 3))
    with pytest.raises(DeadlineError, match=r"reservoir: no batch within 0 s: 3 of 4 segments"):
        reservoir.pop(0)
    reservoir.push(rows(3, 40))
    drawn = np.array([reservoir.pop(0).tree["x"] for _ in range(2500)])
    assert all(len(set(batch)) == 4 for batch in drawn.tolist())
    counts = np.bincount(np.searchsorted(sample(reservoir), drawn.ravel()))
    assert np.all(np.abs(counts - 1000) < 125)  # Binomial(2,500, 0.4): 5 standard deviations


async def test_the_rest_of_a_buffer():
    reservoir = make(2)
    assert await reservoir.push_async(rows(0, 5)) == 5
    assert len((await reservoir.pop_async(0)).block) == len(next(iter(reservoir)).block) == 1
    assert reservoir.batch_layout == LAYOUT
    reservoir.close()
    assert list(reservoir) == [batch async for batch in reservoir] == []
    with pytest.raises(ClosedError, match="reservoir: closed"):
        reservoir.push(rows(0, 1))


def test_a_restored_one_goes_on_as_if_nothing_had_been(tmp_path):
    first, second = make(5, seed=1), make(5, seed=2)
    for count in (3, 200):  # not yet full, and full
        first.push(rows(0, count), weights=np.arange(1, count + 1))
        first.save(tmp_path / "r")
        assert second.load(tmp_path / "r") == min(count, 5)
        second.load_state_dict(first.state_dict())
        for reservoir in (first, second):
            reservoir.push(rows(1000, 1300))
        assert sample(first) == sample(second)
        assert first.pop().tree["x"].tolist() == second.pop().tree["x"].tolist()
        first = make(5, seed=1)
    with pytest.raises(SpecError, match="expected a sample of capacity=6, got 5"):
        make(6).load(tmp_path / "r")
    with pytest.raises(SpecError, match="random: expected a generator's state"):
        make(6).load_state_dict({"policy_version": 1})


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1, 0], "expected finite numbers above 0, got 0.0"),
        ([-2, 1], "above 0, got -2.0"),
        ([1, math.nan], "got nan"),
        ([math.inf, 1], "got inf"),
        ([1], r"weights: expected 2, one a segment, got shape \(1,\)"),
        (1.0, r"weights: expected 2"),
    ],
)
def test_bad_weights_are_refused_and_nothing_is_added(weights, message):
    reservoir = make(2)
    with pytest.raises(SpecError, match=message):
        reservoir.push(rows(0, 2), weights=weights)
    assert reservoir.stats()["pushed"] == 0


def test_bad_settings_are_refused():
    with pytest.raises(ConfigError, match="batch_size: 3 exceeds capacity=2"):
        make(2, batch_size=3)
    with pytest.raises(ConfigError, match="seed: expected 0 or more, got -1"):
        ReservoirConfig(capacity=2, batch_size=2, seed=-1)
    with pytest.raises(ConfigError, match="capacity: expected 1 or more, got 0"):
        make(0)
