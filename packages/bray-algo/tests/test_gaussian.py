"""The diagonal Gaussian against torch.distributions, and at extremes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bray_algo.distributions import gaussian


@given(st.integers(0, 1000))
def test_against_torch(seed: int) -> None:
    rng = np.random.default_rng(seed)
    mean_p, log_p, mean_q, log_q, action = (torch.tensor(rng.normal(size=3)) for _ in range(5))
    p = torch.distributions.Normal(mean_p, log_p.exp())
    q = torch.distributions.Normal(mean_q, log_q.exp())
    kl = torch.distributions.kl_divergence(p, q).sum()
    assert torch.allclose(gaussian.log_prob(mean_p, log_p, action), p.log_prob(action).sum())
    assert torch.allclose(gaussian.entropy(mean_p, log_p), p.entropy().sum())
    assert torch.allclose(gaussian.kl(mean_p, log_p, mean_q, log_q), kl)


def test_samples_have_mean_and_spread() -> None:
    mean, log_std = torch.zeros(20_000, 2) + 3, torch.zeros(20_000, 2) - 1
    drawn = gaussian.sample(mean, log_std, torch.Generator().manual_seed(0))
    error = 5 * math.exp(-1) / math.sqrt(20_000)  # five standard errors
    assert (drawn.mean(0) - 3).abs().max() < error
    assert (drawn.std(0) - math.exp(-1)).abs().max() < error
    assert torch.equal(gaussian.mode(mean, log_std), mean)


@pytest.mark.parametrize("log_std", [-1000.0, -50.0, 50.0, 1000.0])
def test_extreme_deviations_stay_finite(log_std: float) -> None:
    mean, action = torch.zeros(1, 2), torch.tensor([[0.0, 3.0]])
    spread = torch.full((2,), log_std, requires_grad=True)
    narrow = torch.full((2,), -1000.0)
    values = (
        gaussian.log_prob(mean, spread, action),
        gaussian.entropy(mean, spread),
        gaussian.kl(mean, spread, action, narrow),
        gaussian.sample(mean, spread),
    )
    assert all(torch.isfinite(value).all() for value in values)
    torch.stack([value.sum() for value in values]).sum().backward()
    assert spread.grad is not None
    assert torch.isfinite(spread.grad).all()


def test_one_deviation_serves_every_row() -> None:
    mean, log_std, action = torch.randn(5, 3), torch.randn(3), torch.randn(5, 3)
    wide = log_std.expand(5, 3)
    assert torch.equal(
        gaussian.log_prob(mean, log_std, action), gaussian.log_prob(mean, wide, action)
    )
    assert torch.equal(gaussian.entropy(mean, log_std), gaussian.entropy(mean, wide))
    assert gaussian.kl(mean, log_std, mean, log_std).tolist() == [0.0] * 5


def test_shapes_are_checked() -> None:
    mean = torch.zeros(2, 3)
    with pytest.raises(ValueError, match=r"action: expected shape \(2, 3\), got \(3,\)"):
        gaussian.log_prob(mean, mean, torch.zeros(3))
    with pytest.raises(ValueError, match=r"log_std: expected shape \(2, 3\) or \(3,\), got \(2,\)"):
        gaussian.entropy(mean, torch.zeros(2))
    with pytest.raises(ValueError, match=r"mean_q: expected shape \(2, 3\), got \(1, 3\)"):
        gaussian.kl(mean, mean, torch.zeros(1, 3), mean)
