"""The squashed Gaussian against torch.distributions, quadrature and Monte Carlo."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from bray_algo.distributions import gaussian, squashed_gaussian


def entropy_by_sums(mean: float, std: float) -> float:
    """H[tanh u] = H[u] + E log(1 − tanh² u), as a fine sum over the Gaussian."""
    u = mean + std * np.linspace(-12, 12, 400_001)
    weight = np.exp(-0.5 * ((u - mean) / std) ** 2)
    weight /= weight.sum()
    slope = 2 * (np.log(2) - np.logaddexp(u, -u))
    return 0.5 * math.log(2 * math.pi * math.e) + math.log(std) + float((weight * slope).sum())


@given(st.integers(0, 1000))
def test_against_torch(seed: int) -> None:
    rng = np.random.default_rng(seed)
    mean, log_std, before = (torch.tensor(rng.normal(size=3)) for _ in range(3))
    action = torch.tanh(before)
    reference = TransformedDistribution(Normal(mean, log_std.exp()), TanhTransform())
    want = reference.log_prob(action).sum()
    assert torch.allclose(squashed_gaussian.log_prob(mean, log_std, action), want)


@pytest.mark.parametrize("mean", [0.0, 0.7, -3.0, 30.0])
@pytest.mark.parametrize("std", [1e-3, 0.1, 0.5, 0.999, 1.0, 2.0, 10.0, 100.0])
def test_entropy_against_fine_sums(mean: float, std: float) -> None:
    at, log_std = torch.tensor([mean]).double(), torch.tensor([std]).double().log()
    got = squashed_gaussian.entropy(at, log_std).item()
    assert got == pytest.approx(entropy_by_sums(mean, std), abs=1e-6)
    single = squashed_gaussian.entropy(at.float(), log_std.float()).item()
    assert single == pytest.approx(got, rel=1e-5, abs=1e-5)


def check_gradient(function: Callable[[Tensor, Tensor], Tensor], *inputs: Tensor) -> None:
    """Compare with central differences (`gradcheck` would import sympy, which takes seconds)."""
    leaves = [entry.double().requires_grad_() for entry in inputs]
    gradients = torch.autograd.grad(function(*leaves).sum(), leaves)
    for index, gradient in enumerate(gradients):
        for place in range(gradient.numel()):
            step = torch.zeros(gradient.numel(), dtype=torch.float64)
            step[place] = 1e-6
            ends = []
            for sign in (1, -1):
                moved = [leaf.detach() for leaf in leaves]
                moved[index] = moved[index] + sign * step.view(gradient.shape)
                ends.append(function(*moved).sum())
            want = (ends[0] - ends[1]) / 2e-6
            assert gradient.flatten()[place].item() == pytest.approx(want.item(), abs=1e-6)


def test_the_gradient_of_the_entropy() -> None:
    mean, log_std = torch.tensor([0.3, -1.0, 2.0]), torch.tensor([-1.0, 0.5, -0.2])
    check_gradient(squashed_gaussian.entropy, mean, log_std)


def test_the_density_integrates_to_one() -> None:
    # In u the density of tanh u has the weight of its slope, which is tested with it.
    u = torch.linspace(-15, 15, 100_001, dtype=torch.float64)
    action = torch.tanh(u[:, None])
    mean = torch.full_like(action, 0.4)
    density = squashed_gaussian.log_prob(mean, torch.zeros(1).double(), action).exp()
    inside = action.squeeze(-1).abs() < 1 - 1e-12
    total = torch.trapezoid(density[inside], action[inside].squeeze(-1))
    assert total.item() == pytest.approx(1, abs=1e-5)


def test_samples_agree_with_entropy_and_kl() -> None:
    generator = torch.Generator().manual_seed(0)
    shape = (100_000, 1)
    mean, log_std = torch.full(shape, 0.5).double(), torch.full(shape, -0.3).double()
    other, wider = torch.zeros(shape).double(), torch.zeros(shape).double()
    action, log_p = squashed_gaussian.sample_with_log_prob(mean, log_std, generator)
    assert (action.abs() < 1).all()
    assert torch.allclose(log_p, squashed_gaussian.log_prob(mean, log_std, action))
    for each, want in (
        (-log_p, squashed_gaussian.entropy(mean[:1], log_std[:1])),
        (
            log_p - squashed_gaussian.log_prob(other, wider, action),
            squashed_gaussian.kl(mean[:1], log_std[:1], other[:1], wider[:1]),
        ),
    ):
        error = 5 * each.std() / math.sqrt(len(each))  # five standard errors
        assert (each.mean() - want.squeeze()).abs() < error
    again = squashed_gaussian.sample(mean, log_std, torch.Generator().manual_seed(0))
    assert torch.equal(again, action)
    assert torch.equal(squashed_gaussian.mode(mean, log_std), torch.tanh(mean))


def test_the_reparametrised_gradient() -> None:
    def loss(mean: Tensor, log_std: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(1)
        action, log_p = squashed_gaussian.sample_with_log_prob(mean, log_std, generator)
        return action.sum() + log_p.sum()

    check_gradient(loss, torch.zeros(1, 2), torch.zeros(2))


@pytest.mark.parametrize("action", [-1.0, 1.0, 0.0, 2.0])
@pytest.mark.parametrize("log_std", [-1000.0, 0.0, 1000.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_extremes_stay_finite(action: float, log_std: float, dtype: torch.dtype) -> None:
    mean = torch.tensor([[-1e4, 1e4]], dtype=dtype, requires_grad=True)
    spread = torch.full((2,), log_std, dtype=dtype, requires_grad=True)
    log_p = squashed_gaussian.log_prob(mean, spread, torch.full_like(mean, action))
    drawn, of_drawn = squashed_gaussian.sample_with_log_prob(mean, spread)
    entropy = squashed_gaussian.entropy(mean, spread)
    values = [log_p.sum(), drawn.sum(), of_drawn.sum(), entropy.sum()]
    assert all(torch.isfinite(value) for value in values)
    gradients = torch.autograd.grad(torch.stack(values).sum(), (mean, spread))
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


def test_kl_is_that_of_the_gaussians() -> None:
    p, q, spread = torch.randn(4, 2), torch.randn(4, 2), torch.randn(2)
    want = gaussian.kl(p, spread, q, spread + 1)
    assert torch.equal(squashed_gaussian.kl(p, spread, q, spread + 1), want)
    with pytest.raises(ValueError, match=r"action: expected shape \(4, 2\), got \(2,\)"):
        squashed_gaussian.log_prob(p, spread, spread)
