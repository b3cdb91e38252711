from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bray_algo.losses import critics, td3

K, N = 2, 5


@given(st.integers(0, 1000))
def test_targets_and_losses_are_the_papers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    q, reward, discount = (
        rng.normal(size=(K, N)),
        rng.normal(size=N),
        rng.choice([0.0, 0.99], N),
    )
    y = td3.target(*map(torch.tensor, (q, reward, discount)))
    want = [reward[i] + discount[i] * min(q[0, i], q[1, i]) for i in range(N)]
    assert y.tolist() == pytest.approx(want)
    loss, _ = critics.critic_loss(torch.tensor(q), y)
    assert loss.item() == pytest.approx(
        sum((q[k, i] - want[i]) ** 2 for k in range(K) for i in range(N)) / N
    )
    assert td3.actor_loss(torch.tensor(q[0]))[0].item() == pytest.approx(-q[0].mean())


def test_gradients_agree_with_finite_differences() -> None:
    q = torch.randn(K, N, dtype=torch.float64, requires_grad=True)
    target = torch.randn(N, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(N, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda q: critics.critic_loss(q, target, weight=weight)[0], (q,)
    )
    assert torch.autograd.gradcheck(lambda q: td3.actor_loss(q[0])[0], (q,))
    critics.critic_loss(q, target)[0].backward()
    assert target.grad is None


def test_smoothing_noise_is_clipped_and_scaled_to_the_range() -> None:
    low, high = torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 10.0])
    action = torch.tensor([[0.0, 5.0]]).expand(20_000, 2).clone().requires_grad_()
    generator = torch.Generator().manual_seed(0)
    got = td3.smoothed(action, low=low, high=high, generator=generator)
    noise = (got - action.detach()) / torch.tensor([1.0, 5.0])
    assert not got.requires_grad
    assert noise.abs().max().item() == pytest.approx(0.5, abs=1e-6)  # 1.2 % of draws go beyond
    # Deviation of N(0, 0.2²) held within ±2.5 deviations, by numerical integration.
    x = np.linspace(-8, 8, 160_001)
    density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    std = 0.2 * math.sqrt(np.sum(np.clip(x, -2.5, 2.5) ** 2 * density) * (x[1] - x[0]))
    assert noise.std(0).tolist() == pytest.approx([std, std], rel=0.03)
    assert noise.mean(0).abs().max() < 5 * std / math.sqrt(20_000)


@given(st.floats(-1e6, 1e6), st.integers(0, 1000))
def test_smoothed_actions_stay_within_bounds(action: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    got = td3.smoothed(torch.full((8, 2), action), noise=5.0, noise_clip=9.0, generator=generator)
    assert (got.abs() <= 1).all()


def test_the_actor_learns_every_other_step() -> None:
    assert [td3.is_actor_step(step) for step in range(4)] == [False, True, False, True]
    assert all(td3.is_actor_step(step, delay=1) for step in range(3))


def test_nonsense_is_refused() -> None:
    action = torch.zeros(N, 2)
    with pytest.raises(ValueError, match=r"action: expected \[N, D\], not empty"):
        td3.smoothed(action[0])
    with pytest.raises(ValueError, match=r"low: expected a number or shape \(2,\), got \(3,\)"):
        td3.smoothed(action, low=torch.zeros(3))
    with pytest.raises(ValueError, match="noise_clip: expected a positive number, got 0"):
        td3.smoothed(action, noise_clip=0)
    with pytest.raises(ValueError, match=r"next_q: expected \[K, N\], not empty"):
        td3.target(action[0], action[0], action[0])
    with pytest.raises(ValueError, match=r"reward|discount: expected shape"):
        td3.target(action.T, torch.zeros(N), torch.zeros(2))
    with pytest.raises(ValueError, match=r"q: expected \[N\], not empty, got shape \(5, 2\)"):
        td3.actor_loss(action)
    with pytest.raises(ValueError, match="delay: expected 1 or more, got 0"):
        td3.is_actor_step(1, 0)
