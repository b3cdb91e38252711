"""The losses of IQL, CQL and TD3+BC: the papers' formulas in numpy, gradients by differences."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bray_algo.losses import cql, iql, td3_bc

K, N, A, D, M = 2, 5, 4, 3, 6
Numbers = npt.NDArray[np.float64]
SEEDS = st.integers(0, 1000)


def column(rng: np.random.Generator, *shape: int) -> Numbers:
    return rng.normal(size=shape)


def gradient(function: Callable[[Numbers], float], at: Numbers) -> Numbers:
    """Central differences of a function of an array."""
    found, step = np.zeros_like(at), 1e-6
    for index in np.ndindex(at.shape):
        high, low = at.copy(), at.copy()
        high[index] += step
        low[index] -= step
        found[index] = (function(high) - function(low)) / (2 * step)
    return found


def agree(loss: Callable[[Any], Any], formula: Callable[[Numbers], float], at: Numbers) -> None:
    """A loss and its gradient are those of a formula."""
    tensor = torch.tensor(at, requires_grad=True)
    found = loss(tensor)
    assert found.item() == pytest.approx(formula(at))
    found.backward()
    np.testing.assert_allclose(tensor.grad, gradient(formula, at), rtol=1e-4, atol=1e-6)


@given(SEEDS, st.sampled_from([0.1, 0.5, 0.7, 0.9]))
def test_the_value_of_iql_is_an_expectile(seed: int, tau: float) -> None:
    rng = np.random.default_rng(seed)
    q, value = column(rng, K, N), column(rng, N)

    def formula(v: Numbers) -> float:
        u = q.min(0) - v
        return float(np.mean(np.abs(tau - (u < 0)) * u**2))

    agree(lambda v: iql.value_loss(v, torch.tensor(q), expectile=tau)[0], formula, value)


def test_an_expectile_lies_between_mean_and_best() -> None:
    """The minimum of the loss over one number, for samples 0 and 1."""
    q = torch.tensor([[0.0, 1.0]] * 2, dtype=torch.float64)
    for tau in (0.5, 0.7, 0.9):
        values = torch.linspace(0, 1, 1001, dtype=torch.float64)
        losses = [iql.value_loss(v.expand(2), q, expectile=tau)[0].item() for v in values]
        assert values[int(np.argmin(losses))].item() == pytest.approx(tau, abs=1e-3)


@given(SEEDS, st.sampled_from([0.5, 3.0, 10.0]))
def test_the_policy_of_iql_is_cloned_by_its_advantage(seed: int, beta: float) -> None:
    rng = np.random.default_rng(seed)
    q, value, log_prob = column(rng, K, N), column(rng, N), column(rng, N)
    advantage = iql.advantage(torch.tensor(value), torch.tensor(q))
    weight = np.minimum(np.exp(beta * (q.min(0) - value)), 100.0)
    agree(
        lambda p: iql.policy_loss(p, advantage, inverse_temperature=beta)[0],
        lambda p: float(-np.mean(weight * p)),
        log_prob,
    )


def test_the_critics_of_iql_follow_the_next_value() -> None:
    target = iql.target(
        torch.tensor([2.0, math.nan]), torch.tensor([1.0, 1.0]), torch.tensor([0.9, 0.0])
    )
    assert target.tolist() == pytest.approx([2.8, 1.0])


@given(SEEDS)
def test_the_gap_of_choices_is_the_papers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    q, action = column(rng, N, A), rng.integers(A, size=N)
    legal = rng.random((N, A)) < 0.5
    legal[range(N), action] = True

    def formula(values: Numbers) -> float:
        sums = [math.log(sum(np.exp(values[i, legal[i]]))) for i in range(N)]
        return float(np.mean([sums[i] - values[i, action[i]] for i in range(N)]))

    agree(lambda v: cql.choice_gap(v, torch.tensor(action), torch.tensor(legal)), formula, q)
    everything = cql.choice_gap(torch.tensor(q), torch.tensor(action))
    legal[:] = True
    assert everything.item() == pytest.approx(formula(q))


@given(SEEDS)
def test_the_gap_of_reals_is_the_papers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sampled, q, density = column(rng, K, N, M), column(rng, K, N), column(rng, N, M)

    def integral(values: Numbers) -> Numbers:
        return np.log(np.mean(np.exp(values) / np.exp(density), -1))  # appendix F

    tensor = torch.tensor
    agree(
        lambda v: cql.sampled_gap(tensor(q), v, tensor(density)),
        lambda v: float((integral(v) - q).mean(-1).sum()),
        sampled,
    )
    agree(
        lambda v: cql.sampled_gap(v, tensor(sampled), tensor(density)),
        lambda v: float((integral(sampled) - v).mean(-1).sum()),
        q,
    )


def test_even_samples_estimate_the_integral() -> None:
    """log ∫ exp(a) da over (−1, 1) is log(e − 1/e)."""
    action = torch.linspace(-1, 1, 20_001, dtype=torch.float64)
    density = torch.full((1, 20_001), math.log(0.5), dtype=torch.float64)
    gap = cql.sampled_gap(torch.zeros(1, 1, dtype=torch.float64), action[None, None], density)
    assert gap.item() == pytest.approx(math.log(math.e - 1 / math.e), abs=1e-4)


@given(SEEDS, st.sampled_from([0.5, 2.5]))
def test_td3_bc_is_the_papers(seed: int, alpha: float) -> None:
    rng = np.random.default_rng(seed)
    q, action, recorded = column(rng, N), column(rng, N, D), column(rng, N, D)
    weight = alpha / np.mean(np.abs(q))  # a constant of the gradient

    def formula(values: Numbers, actions: Numbers) -> float:
        return float(-weight * np.mean(values) + np.mean((actions - recorded) ** 2))

    other = torch.tensor(recorded)
    agree(
        lambda a: td3_bc.actor_loss(torch.tensor(q), a, other, alpha=alpha)[0],
        lambda a: formula(q, a),
        action,
    )
    agree(
        lambda v: td3_bc.actor_loss(v, torch.tensor(action), other, alpha=alpha)[0],
        lambda v: formula(v, action),
        q,
    )


def test_values_of_0_leave_cloning_alone() -> None:
    loss, _ = td3_bc.actor_loss(torch.zeros(N), torch.ones(N, D), torch.zeros(N, D))
    assert loss.item() == 1.0


@pytest.mark.parametrize(
    ("message", "refused"),
    [
        ("expectile: expected between 0 and 1", lambda z: iql.value_loss(z[0], z, expectile=1.0)),
        (r"target_q: expected \[K, N\]", lambda z: iql.value_loss(z[0], z[0])),
        (r"value: expected shape \(5,\)", lambda z: iql.advantage(z[0, :3], z)),
        (
            "inverse_temperature: expected a positive number",
            lambda z: iql.policy_loss(z[0], z[0], inverse_temperature=0),
        ),
        (r"advantage: expected shape \(5,\)", lambda z: iql.policy_loss(z[0], z[0, :2])),
        (r"q: expected \[N, A\]", lambda z: cql.choice_gap(z[0], z[0].long())),
        ("legal: expected bool", lambda z: cql.choice_gap(z, z[:, 0].long(), z)),
        (r"sampled_q: expected \[K, N, M\]", lambda z: cql.sampled_gap(z, z, z)),
        ("log_density: expected shape", lambda z: cql.sampled_gap(z, z[..., None], z)),
        ("alpha: expected a positive number", lambda z: td3_bc.actor_loss(z[0], z, z, alpha=0)),
        ("recorded: expected shape", lambda z: td3_bc.actor_loss(z[:, 0], z, z[:, :2])),
        (r"q: expected shape \(2,\)", lambda z: td3_bc.actor_loss(z[0], z, z)),
    ],
)
def test_nonsense_is_refused(message: str, refused: Callable[[Any], Any]) -> None:
    with pytest.raises(ValueError, match=message):
        refused(torch.zeros(K, N))
