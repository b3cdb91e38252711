"""Actions on a grid against plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bray_algo.distributions import discretised

D, K = 2, 5


@given(st.integers(0, 1000))
def test_against_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(2, D, K)) * 3
    p, q = (np.exp(z) / np.exp(z).sum(-1, keepdims=True) for z in (x, y))
    low, high = torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 10.0])
    index = rng.integers(0, K, size=D)
    grid = [np.linspace(-1, 1, K), np.linspace(0, 10, K)]
    action = torch.tensor([grid[d][index[d]] for d in range(D)])
    near = action + torch.tensor([0.2, -1.2])  # less than half a step off
    want = sum(math.log(p[d, index[d]]) for d in range(D))
    logits, others = torch.tensor(x), torch.tensor(y)
    assert discretised.log_prob(logits, action, low, high).item() == pytest.approx(want)
    assert discretised.log_prob(logits, near, low, high).item() == pytest.approx(want)
    assert discretised.entropy(logits).item() == pytest.approx(-(p * np.log(p)).sum())
    kl = discretised.kl(logits, others).item()
    assert kl == pytest.approx((p * np.log(p / q)).sum(), abs=1e-9)
    best = [grid[d][p[d].argmax()] for d in range(D)]
    assert discretised.mode(logits, low, high).tolist() == pytest.approx(best)


def test_samples_are_of_the_grid_and_follow_the_probabilities() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0]).expand(20_000, 1, 3)
    drawn = discretised.sample(logits, -2.0, 2.0, torch.Generator().manual_seed(0))
    p = np.exp([0, 1, 2]) / np.exp([0, 1, 2]).sum()
    for value, chance in zip((-2.0, 0.0, 2.0), p, strict=True):
        count = int((drawn == value).sum())
        assert abs(count - 20_000 * chance) < 5 * math.sqrt(20_000 * chance * (1 - chance))


def test_points_and_values_are_inverse_and_the_ends_hold() -> None:
    index = torch.arange(11)
    assert torch.equal(discretised.nearest(discretised.values(index, 11), 11), index)
    assert discretised.nearest(torch.tensor([-9.0, 9.0]), 11).tolist() == [0, 10]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_finds_its_point(dtype: torch.dtype) -> None:
    index = torch.arange(31)
    action = discretised.values(index, 31, 0.0, 1.0).to(dtype)
    assert torch.equal(discretised.nearest(action, 31, 0.0, 1.0), index)


def test_ordinal_logits() -> None:
    raw = torch.tensor([0.3, -2.0, 1.0], dtype=torch.float64)
    s = 1 / (1 + np.exp(-raw.numpy()))
    want = [
        sum(np.log(s[j]) for j in range(i + 1)) + sum(np.log(1 - s[j]) for j in range(i + 1, 3))
        for i in range(3)
    ]
    assert discretised.ordinal(raw).tolist() == pytest.approx(want)
    assert torch.isfinite(discretised.ordinal(torch.tensor([-1e4, 1e4, 0.0]))).all()


def test_infinite_logits_are_safe() -> None:
    logits = torch.tensor([[[0.0, -math.inf], [1e30, 0.0]]], requires_grad=True)
    action = torch.tensor([[1.0, 1.0]])
    values = [
        discretised.log_prob(logits, action).sum(),
        discretised.entropy(logits).sum(),
        discretised.kl(logits, torch.zeros_like(logits)).sum(),
    ]
    assert all(torch.isfinite(value) for value in values)
    (gradient,) = torch.autograd.grad(torch.stack(values).sum(), logits)
    assert torch.isfinite(gradient).all()


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match=r"action: expected shape \(4, 2\), got \(2,\)"):
        discretised.log_prob(torch.zeros(4, 2, 3), torch.zeros(2))
    with pytest.raises(ValueError, match="the last axis of logits: expected 2 or more, got 1"):
        discretised.mode(torch.zeros(4, 2, 1))
    with pytest.raises(ValueError, match="logits_q: expected shape"):
        discretised.kl(torch.zeros(4, 2, 3), torch.zeros(4, 2, 4))
