from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bray_algo.distributions import gaussian
from bray_algo.losses import critics, sac

K, N = 2, 5


@given(st.integers(0, 1000), st.floats(0, 2), st.integers(1, 4))
def test_targets_are_the_papers(seed: int, alpha: float, num_critics: int) -> None:
    rng = np.random.default_rng(seed)
    q, log_prob, reward = (
        rng.normal(size=(num_critics, N)),
        rng.normal(size=N),
        rng.normal(size=N),
    )
    discount = rng.choice([0.0, 0.99], N)
    tensors = map(torch.tensor, (q, log_prob, reward, discount))
    got = sac.target(*tensors, alpha=alpha)
    for i in range(N):
        soft = min(q[k, i] for k in range(num_critics)) - alpha * log_prob[i]
        assert got[i].item() == pytest.approx(reward[i] + discount[i] * soft)


@given(st.integers(0, 1000))
def test_losses_row_by_row(seed: int) -> None:
    rng = np.random.default_rng(seed)
    q, y, weight, log_prob = (
        rng.normal(size=(K, N)),
        rng.normal(size=N),
        rng.random(N),
        rng.normal(size=N),
    )
    loss, terms = sac.critic_loss(*map(torch.tensor, (q, y)), weight=torch.tensor(weight))
    want = sum(weight[i] * (q[k, i] - y[i]) ** 2 / 2 for k in range(K) for i in range(N)) / N
    assert loss.item() == pytest.approx(want)
    assert terms["td_error"].item() == pytest.approx(np.abs(q - y).mean())
    priorities = critics.td_error(torch.tensor(q), torch.tensor(y))
    assert priorities.numpy() == pytest.approx(np.abs(q - y).mean(0))

    loss, terms = sac.actor_loss(torch.tensor(q), torch.tensor(log_prob), alpha=0.3)
    want = sum(0.3 * log_prob[i] - min(q[0, i], q[1, i]) for i in range(N)) / N
    assert loss.item() == pytest.approx(want)
    assert terms["entropy"].item() == pytest.approx(-log_prob.mean())

    loss, terms = sac.temperature_loss(
        torch.tensor(-0.5), torch.tensor(log_prob), target_entropy=-2.0
    )
    want = np.mean([-math.exp(-0.5) * (x - 2.0) for x in log_prob])
    assert loss.item() == pytest.approx(want, rel=1e-5, abs=1e-6)
    assert terms["alpha"].item() == pytest.approx(math.exp(-0.5))


def test_gradients_agree_with_finite_differences() -> None:
    rng = np.random.default_rng(0)
    q = torch.tensor(rng.normal(size=(K, N)), requires_grad=True)
    log_prob = torch.tensor(rng.normal(size=N), requires_grad=True)
    log_alpha = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    target = torch.tensor(rng.normal(size=N))

    def temperature(log_alpha: torch.Tensor) -> torch.Tensor:
        return sac.temperature_loss(log_alpha, log_prob, target_entropy=-1)[0]

    assert torch.autograd.gradcheck(lambda q: sac.critic_loss(q, target)[0], (q,))
    assert torch.autograd.gradcheck(lambda q, p: sac.actor_loss(q, p, alpha=0.2)[0], (q, log_prob))
    assert torch.autograd.gradcheck(temperature, (log_alpha,))


def test_constants_get_no_gradient() -> None:
    alpha = torch.tensor(0.5, requires_grad=True)
    columns = [torch.rand(N, requires_grad=True) for _ in range(3)]
    q = torch.rand(K, N, requires_grad=True)
    assert not sac.target(q, *columns, alpha=alpha).requires_grad
    sac.actor_loss(q, columns[0], alpha=alpha)[0].backward()
    sac.critic_loss(q, columns[1])[0].backward()
    assert alpha.grad is None
    assert columns[1].grad is None
    columns[0].grad = None
    sac.temperature_loss(alpha, columns[0], target_entropy=0.0)[0].backward()
    assert columns[0].grad is None


def test_the_temperature_brings_the_entropy_to_its_target() -> None:
    # Q = −½ k a²: the best soft policy is a Gaussian of variance α / k, whose entropy is the
    # target at α = k e^{2H} / 2πe.
    torch.manual_seed(0)
    k, entropy = 4.0, 0.5
    mean, log_std = torch.ones(1, requires_grad=True), torch.zeros(1, requires_grad=True)
    log_alpha = torch.zeros((), requires_grad=True)
    optimizer = torch.optim.Adam([mean, log_std, log_alpha], lr=0.02)
    rows = []
    for _ in range(700):
        spread = mean.expand(128, 1)
        action = gaussian.sample(spread, log_std)
        log_prob = gaussian.log_prob(spread, log_std, action)
        q = (-0.5 * k * action.square()).squeeze(-1).expand(K, -1)
        alpha = log_alpha.detach().exp()
        actor = sac.actor_loss(q, log_prob, alpha=alpha)[0]
        temperature = sac.temperature_loss(log_alpha, log_prob, target_entropy=entropy)[0]
        optimizer.zero_grad()
        (actor + temperature).backward()
        optimizer.step()
        rows.append((float(alpha), gaussian.entropy(mean, log_std).item()))
    got_alpha, got_entropy = np.mean(rows[-200:], axis=0)
    assert got_entropy == pytest.approx(entropy, abs=0.03)
    assert got_alpha == pytest.approx(k * math.exp(2 * entropy) / (2 * math.pi * math.e), rel=0.1)
    assert abs(mean.item()) < 0.1


def test_a_terminal_row_may_hold_anything() -> None:
    q, log_prob = torch.full((K, 1), math.nan), torch.full((1,), math.inf)
    assert sac.target(q, log_prob, torch.ones(1), torch.zeros(1), alpha=1.0).tolist() == [1.0]


def test_nonsense_is_refused() -> None:
    q, column = torch.zeros(K, N), torch.zeros(N)
    with pytest.raises(ValueError, match=r"next_q: expected \[K, N\], not empty"):
        sac.target(column, column, column, column, alpha=0.1)
    with pytest.raises(ValueError, match=r"next_log_prob: expected shape \(5,\), got \(5, 1\)"):
        sac.target(q, column[:, None], column, column, alpha=0.1)
    with pytest.raises(ValueError, match=r"target: expected shape \(5,\), got \(2, 5\)"):
        sac.critic_loss(q, q)
    with pytest.raises(ValueError, match=r"q: expected \[K, N\], not empty, got shape \(2, 0\)"):
        sac.critic_loss(q[:, :0], column[:0])
    with pytest.raises(ValueError, match=r"log_prob: expected shape \(5,\), got \(1,\)"):
        sac.actor_loss(q, column[:1], alpha=0.1)
    with pytest.raises(ValueError, match=r"log_alpha: expected a scalar, got shape \(5,\)"):
        sac.temperature_loss(column, column, target_entropy=0.0)
    with pytest.raises(ValueError, match=r"log_prob: expected \[N\], not empty, got shape \(2, 5"):
        sac.temperature_loss(torch.zeros(()), q, target_entropy=0.0)
    with pytest.raises(ValueError, match=r"q: expected \[K, N, …\], not empty"):
        critics.lowest(column)
