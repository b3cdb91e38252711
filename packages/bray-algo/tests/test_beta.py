"""The Beta distribution against torch.distributions, quadrature and Monte Carlo."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Beta, kl_divergence

from bray_algo.distributions import beta


def double(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


@given(st.integers(0, 1000))
def test_against_torch(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b, c, d = (torch.tensor(rng.gamma(1.0, 3.0, size=3) + 0.05) for _ in range(4))
    x = torch.tensor(rng.uniform(0.01, 0.99, size=3))
    p, q = Beta(a, b), Beta(c, d)
    assert torch.allclose(beta.log_prob(a, b, x), p.log_prob(x).sum())
    assert torch.allclose(beta.entropy(a, b), p.entropy().sum())
    assert torch.allclose(beta.kl(a, b, c, d), kl_divergence(p, q).sum())
    assert beta.kl(a, b, c, d) >= 0
    assert beta.kl(a, b, a, b) == 0


@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (2.0, 5.0), (30.0, 3.0), (1.5, 1.2)])
def test_density_and_entropy_by_integration(a: float, b: float) -> None:
    x = torch.linspace(0, 1, 200_001, dtype=torch.float64)
    log_p = beta.log_prob(double(a).expand(len(x), 1), double(b).expand(len(x), 1), x[:, None])
    assert torch.trapezoid(log_p.exp(), x).item() == pytest.approx(1, abs=1e-4)
    entropy = -torch.trapezoid(log_p.exp() * log_p, x).item()
    assert beta.entropy(double(a), double(b)).item() == pytest.approx(entropy, abs=1e-4)


@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (3.0, 2.0), (0.05, 0.3), (400.0, 100.0)])
def test_samples_have_mean_and_spread(a: float, b: float) -> None:
    shape = (50_000, 1)
    drawn = beta.sample(
        torch.full(shape, a), torch.full(shape, b), torch.Generator().manual_seed(0)
    )
    mean, variance = a / (a + b), a * b / ((a + b) ** 2 * (a + b + 1))
    assert ((drawn > 0) & (drawn < 1)).all()
    assert abs(drawn.mean().item() - mean) < 5 * math.sqrt(variance / len(drawn))
    fourth = ((drawn.double() - mean) ** 4).mean().item()
    error = 5 * math.sqrt((fourth - variance**2) / len(drawn))  # of the variance
    assert abs(((drawn.double() - mean) ** 2).mean().item() - variance) < error


def test_the_reparametrised_gradient_by_monte_carlo() -> None:
    a, b = double(2.0).requires_grad_(), double(3.0).requires_grad_()
    drawn = beta.sample(a.expand(200_000), b.expand(200_000), torch.Generator().manual_seed(0))
    got = torch.autograd.grad(drawn.mean(), (a, b))
    # E x = a / (a + b)
    assert got[0].item() == pytest.approx(3 / 25, rel=0.02)
    assert got[1].item() == pytest.approx(-2 / 25, rel=0.02)


@given(st.integers(0, 100))
def test_gradients_by_finite_differences(seed: int) -> None:
    rng = np.random.default_rng(seed)
    at = torch.tensor(rng.gamma(2.0, 2.0, size=4) + 0.1, requires_grad=True)
    x = double(rng.uniform(0.05, 0.95))

    def all_of(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
        a, b, c, d = (entry[None] for entry in (a, b, c, d))
        return beta.log_prob(a, b, x) + 2 * beta.entropy(a, b) + 3 * beta.kl(a, b, c, d)

    (gradient,) = torch.autograd.grad(all_of(*at), at)
    for index in range(4):
        step = torch.zeros(4, dtype=torch.float64)
        step[index] = 1e-5
        with torch.no_grad():
            want = (all_of(*(at + step)) - all_of(*(at - step))) / 2e-5
        assert gradient[index].item() == pytest.approx(want.item(), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("a", [0.0, 1e-9, 1.0, 1e4, 1e30])
@pytest.mark.parametrize("b", [1e-9, 1.0, 1e6])
@pytest.mark.parametrize("x", [0.0, 0.5, 1.0])
def test_extremes_stay_finite(a: float, b: float, x: float) -> None:
    alpha, other = torch.tensor([a], requires_grad=True), torch.tensor([b], requires_grad=True)
    drawn = beta.sample(alpha, other)
    values = torch.stack(
        [
            beta.log_prob(alpha, other, torch.tensor([x])),
            beta.log_prob(alpha, other, drawn.detach()),
            beta.entropy(alpha, other),
            beta.kl(alpha, other, other, alpha),
            beta.mode(alpha, other).sum(),
            drawn.sum(),
        ]
    )
    assert torch.isfinite(values).all()
    assert 0 < drawn.item() < 1
    gradients = torch.autograd.grad(values.sum(), (alpha, other))
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


def test_great_parameters_keep_their_precision() -> None:
    # Beta(n, n) is nearly a Gaussian of deviation 1 / (2 √(2 n + 1)); float32 in, digits lost.
    n = torch.tensor([1e5])
    std = 1 / (2 * math.sqrt(2e5 + 1))
    entropy = 0.5 * math.log(2 * math.pi * math.e) + math.log(std)
    assert beta.entropy(n, n).item() == pytest.approx(entropy, abs=1e-4)
    peak = -math.log(std * math.sqrt(2 * math.pi))
    assert beta.log_prob(n, n, torch.tensor([0.5])).item() == pytest.approx(peak, abs=1e-4)


def test_modes() -> None:
    a = torch.tensor([3.0, 0.5, 5.0, 1.0, 0.5, 2.0])
    b = torch.tensor([2.0, 2.0, 1.0, 1.0, 1.0, 2.0])
    want = torch.tensor([2 / 3, 0.0, 1.0, 0.5, 1 / 3, 0.5])
    assert torch.allclose(beta.mode(a, b), want)


def test_parameters_of_a_layer_have_one_mode() -> None:
    alpha, other = beta.parameters(torch.tensor([[-100.0, 0.0, 100.0, 3.0]]))
    assert alpha.shape == other.shape == (1, 2)
    assert (torch.cat([alpha, other]) >= 1).all()
    with pytest.raises(ValueError, match=r"raw: expected \[..., 2D\], got shape \(3,\)"):
        beta.parameters(torch.zeros(3))


def test_shapes_are_checked() -> None:
    ones = torch.ones(2, 3)
    with pytest.raises(ValueError, match=r"action: expected shape \(2, 3\), got \(3,\)"):
        beta.log_prob(ones, ones, torch.ones(3))
    with pytest.raises(ValueError, match=r"beta: expected shape \(2, 3\), got \(3,\)"):
        beta.entropy(ones, torch.ones(3))
    with pytest.raises(ValueError, match=r"alpha_q: expected shape \(2, 3\), got \(3,\)"):
        beta.kl(ones, ones, torch.ones(3), torch.ones(3))
