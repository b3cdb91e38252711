from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bray_algo import evolution
from bray_algo.evolution import EvolutionStrategy


@given(st.lists(st.integers(-3, 3), min_size=2, max_size=12))
def test_ranks_are_means_of_places(fitness: list[int]) -> None:
    got = evolution.centred_ranks(torch.tensor(fitness, dtype=torch.float64))
    for i, mine in enumerate(fitness):
        below = sum(other < mine for other in fitness)
        equal = sum(other == mine for other in fitness)
        place = below + (equal - 1) / 2
        assert got[i].item() == pytest.approx(place / (len(fitness) - 1) - 0.5, abs=1e-6)
    assert abs(got.sum().item()) < 1e-5


def test_ranks_at_extremes() -> None:
    fitness = torch.tensor([math.nan, math.inf, -math.inf, 0.0])
    assert evolution.centred_ranks(fitness).tolist() == pytest.approx([-1 / 3, 0.5, -1 / 3, 1 / 6])
    assert evolution.centred_ranks(torch.ones(5)).tolist() == [0.0] * 5
    assert evolution.centred_ranks(torch.tensor([3, 1, 2])).tolist() == [0.5, -0.5, 0.0]


def test_noise_comes_in_opposite_pairs_and_is_the_same_anywhere() -> None:
    parameters = torch.randn(7)
    strategy = EvolutionStrategy(parameters=parameters, population=6, sigma=0.5, seed=3)
    asked = strategy.ask()
    assert torch.allclose(asked[::2] + asked[1::2], 2 * parameters.expand(3, 7))
    for index in range(6):
        alone = evolution.candidate(parameters, strategy.key, index, sigma=0.5)
        assert torch.equal(alone, asked[index])
    assert torch.equal(strategy.ask(), asked)
    strategy.tell(torch.zeros(6))
    assert not torch.equal(strategy.ask(), asked)


def test_the_noise_is_standard_normal_and_independent() -> None:
    rows = torch.stack([evolution.perturbation((0, 1), pair, 2000) for pair in range(10)])
    assert abs(rows.mean()) < 5 / math.sqrt(20_000)
    assert rows.var().item() == pytest.approx(1, abs=5 * math.sqrt(2 / 20_000))
    apart = (rows @ rows.T / 2000).fill_diagonal_(0)
    assert apart.abs().max() < 5 / math.sqrt(2000)


def test_the_gradient_is_the_papers_sum() -> None:
    weight = torch.randn(6, dtype=torch.float64)
    got = evolution.gradient((5,), weight, size=4, sigma=0.1)
    terms = np.zeros((6, 4))
    for i in range(6):
        noise = evolution.perturbation((5,), i // 2, 4).double().numpy()
        terms[i] = weight[i].item() * noise * (1 if i % 2 == 0 else -1) / (6 * 0.1)
    # A sum in float32 is as exact as its terms are large, which may cancel each other.
    bound = 6 * np.finfo(np.float32).eps * np.abs(terms).sum(0)
    assert (np.abs(got.numpy() - terms.sum(0)) <= bound).all()


def test_the_estimate_is_unbiased_for_a_linear_function() -> None:
    slope, sigma, population = torch.tensor([1.0, -2.0, 0.5]), 0.1, 4000
    strategy = EvolutionStrategy(parameters=torch.zeros(3), population=population, sigma=sigma)
    got = evolution.gradient(strategy.key, strategy.ask() @ slope, size=3, sigma=sigma)
    # Var of ε_d (g·ε) is |g|² + g_d² for each of P/2 pairs.
    error = 5 * math.sqrt(2 * float(slope @ slope) / (population / 2))
    assert (got - slope).abs().max() < error


def test_it_climbs_a_badly_scaled_hill() -> None:
    peak, steep = torch.tensor([1.0, -2.0, 0.5, 3.0]), torch.tensor([1.0, 10.0, 0.5, 3.0])
    strategy = EvolutionStrategy(parameters=torch.zeros(4), population=40, sigma=0.1)
    for _ in range(150):
        strategy.tell(-1e6 * (steep * (strategy.ask() - peak).square()).sum(-1))  # any scale
    assert (strategy.parameters - peak).abs().max() < 0.15


def test_equal_fitness_moves_nothing_but_decay_does() -> None:
    still = EvolutionStrategy(parameters=torch.ones(3), population=4)
    assert still.tell(torch.ones(4)) == {"gradient_norm": 0.0}
    assert still.parameters.tolist() == [1.0, 1.0, 1.0]
    drawn = EvolutionStrategy(parameters=torch.ones(3), population=4, weight_decay=0.1)
    drawn.tell(torch.ones(4))
    assert (drawn.parameters < 1).all()


def test_a_loaded_strategy_goes_on_exactly() -> None:
    def step(strategy: EvolutionStrategy) -> None:
        strategy.tell(-strategy.ask().square().sum(-1))

    def make(seed: int) -> EvolutionStrategy:
        return EvolutionStrategy(parameters=torch.ones(5), population=8, sigma=0.1, seed=seed)

    first = make(1)
    step(first)
    step(first)
    state = first.state_dict()
    step(first)  # the state stays as it was
    for other in (make(2), make(3)):
        other.load_state_dict(state)
        assert not torch.equal(first.parameters, other.parameters)
        step(other)
        assert torch.equal(first.parameters, other.parameters)
        assert other.generation == 3


def test_the_callers_parameters_are_left_alone() -> None:
    parameters = torch.ones(3)
    strategy = EvolutionStrategy(parameters=parameters, population=4)
    strategy.tell(torch.tensor([1.0, 0.0, 3.0, 0.0]))
    assert parameters.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"population": 5}, "population: expected an even number, two or more, got 5"),
        ({"population": 0}, "population: expected an even number, two or more, got 0"),
        ({"sigma": 0.0}, "sigma: expected a positive number, got 0.0"),
        ({"learning_rate": -1.0}, "learning_rate: expected a positive number"),
        ({"parameters": torch.zeros(2, 2)}, r"parameters: expected \[D\], not empty"),
    ],
)
def test_nonsense_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EvolutionStrategy(**{"parameters": torch.zeros(3), "population": 4, **change})


def test_nonsense_fitness_is_refused() -> None:
    strategy = EvolutionStrategy(parameters=torch.zeros(3), population=4)
    with pytest.raises(ValueError, match=r"fitness: expected shape \(4,\), got \(3,\)"):
        strategy.tell(torch.zeros(3))
    with pytest.raises(ValueError, match=r"fitness: expected \[P\] of two or more"):
        evolution.centred_ranks(torch.zeros(1))
    with pytest.raises(ValueError, match="weight: expected an even number, of pairs, got 3"):
        evolution.gradient((0,), torch.zeros(3), size=2, sigma=0.1)
    other = EvolutionStrategy(parameters=torch.zeros(2), population=4)
    with pytest.raises(ValueError, match=r"parameters: expected shape \(2,\), got \(3,\)"):
        other.load_state_dict(strategy.state_dict())


KEYS: list[tuple[tuple[int, ...], int]] = [
    ((2**32, 0), 0),
    ((0, 1), 0),
    ((0,), 1),
    ((0, 0), 1),
    ((0, 1, 0), 0),
    ((1, 0), 0),
    ((1,), 0),
    ((), 1),
    ((), 2**32),
    ((2**64, 1), 0),
    ((2**32 + 1,), 0),
    ((1, 1), 0),
    ((0, 0), 2**32),
    ((0, 0, 0, 1), 0),
    ((0, 0, 0, 0, 1), 0),
]


def test_no_two_keys_share_their_noise() -> None:
    drawn = [evolution.perturbation(key, pair, 8).numpy().tobytes() for key, pair in KEYS]
    assert len(set(drawn)) == len(KEYS)


@pytest.mark.parametrize("key", [(0, 0), (7, 3), (2**32 - 1, 5)])
def test_runs_of_small_seeds_keep_their_noise(key: tuple[int, int]) -> None:
    before = np.random.default_rng([*key, 2]).standard_normal(5, dtype=np.float32)
    got = evolution.perturbation(key, 2, 5)
    assert got.tolist() == before.tolist()
    assert torch.equal(evolution.perturbation([np.int64(n) for n in key], 2, 5), got)
