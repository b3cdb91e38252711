from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bray_algo.losses import qr_dqn

N, A, K = 4, 3, 5


@given(st.integers(0, 1000), st.sampled_from([0.3, 1.0]), st.sampled_from([1, 4, 5]))
def test_the_loss_is_the_papers(seed: int, kappa: float, num_targets: int) -> None:
    rng = np.random.default_rng(seed)
    theta, target = rng.normal(size=(N, A, K)), rng.normal(size=(N, num_targets))
    action, weight = rng.integers(0, A, N), rng.random(N)
    tensors = torch.tensor(theta), torch.tensor(action), torch.tensor(target)
    loss, terms = qr_dqn.loss(*tensors, weight=torch.tensor(weight), huber=kappa)
    rows = []
    for n in range(N):
        total = 0.0
        for i in range(K):
            level = (2 * i + 1) / (2 * K)
            for j in range(num_targets):
                u = target[n, j] - theta[n, action[n], i]
                size = u * u / 2 if abs(u) <= kappa else kappa * (abs(u) - kappa / 2)
                total += abs(level - (u < 0)) * size / num_targets
        rows.append(total)
    q = [theta[n, action[n]].mean() for n in range(N)]
    assert loss.item() == pytest.approx(np.mean(weight * rows))
    assert qr_dqn.row_losses(*tensors, huber=kappa).tolist() == pytest.approx(rows)
    assert terms["q"].item() == pytest.approx(np.mean(q))
    assert terms["td_error"].item() == pytest.approx(np.abs(target.mean(1) - q).mean())


@given(st.integers(0, 1000), st.booleans())
def test_targets_take_the_greedy_actions_quantiles(seed: int, double: bool) -> None:
    rng = np.random.default_rng(seed)
    following, online = rng.normal(size=(2, N, A, K))
    reward, discount = rng.normal(size=N), rng.choice([0.0, 0.9], N)
    legal = rng.random((N, A)) < 0.5
    legal[:, 0] = True
    got = qr_dqn.target(
        *map(torch.tensor, (following, reward, discount)),
        next_online_quantiles=torch.tensor(online) if double else None,
        next_legal=torch.tensor(legal),
    )
    for n in range(N):
        chooser = online if double else following
        best = max(np.flatnonzero(legal[n]), key=lambda a: chooser[n, a].mean())
        assert got[n].numpy() == pytest.approx(reward[n] + discount[n] * following[n, best])


def test_quantile_regression_finds_the_quantiles() -> None:
    theta = torch.zeros(1, 1, 4, requires_grad=True)
    target = torch.arange(100)[None] / 100  # even on 0 to 1: quantile τ is τ
    optimizer = torch.optim.Adam([theta], lr=0.02)
    for _ in range(200):
        optimizer.zero_grad()
        qr_dqn.loss(theta, torch.zeros(1, dtype=torch.int64), target, huber=0.01)[0].backward()
        optimizer.step()
    assert theta.flatten().tolist() == pytest.approx([0.125, 0.375, 0.625, 0.875], abs=0.03)


def test_gradients_agree_with_finite_differences() -> None:
    rng = np.random.default_rng(0)
    theta = torch.tensor(rng.normal(size=(N, A, K)), requires_grad=True)
    target = torch.tensor(rng.normal(size=(N, K)), requires_grad=True)
    action = torch.tensor(rng.integers(0, A, N))
    assert torch.autograd.gradcheck(
        lambda x: qr_dqn.loss(x, action, target, huber=0.5)[0], (theta,)
    )
    qr_dqn.loss(theta, action, target)[0].backward()
    assert target.grad is None


def test_extremes_and_terminal_rows() -> None:
    theta = torch.tensor([[[1e30, -1e30]]], requires_grad=True)
    loss, _ = qr_dqn.loss(theta, torch.zeros(1, dtype=torch.int64), torch.zeros(1, 2))
    loss.backward()
    assert torch.isfinite(loss)
    assert theta.grad is not None
    assert theta.grad.flatten().tolist() == pytest.approx([0.75, -0.75])
    following = torch.full((1, 1, 2), math.nan)
    assert qr_dqn.target(following, torch.ones(1), torch.zeros(1)).tolist() == [[1.0, 1.0]]


def test_nonsense_is_refused() -> None:
    theta, column = torch.zeros(N, A, K), torch.zeros(N)
    with pytest.raises(ValueError, match="num_quantiles: expected 1 or more, got 0"):
        qr_dqn.midpoints(0)
    with pytest.raises(ValueError, match=r"quantiles: expected \[N, A, K\], not empty"):
        qr_dqn.loss(theta[0], column.long(), torch.zeros(N, K))
    with pytest.raises(ValueError, match=r"target: expected \[N, K\], not empty"):
        qr_dqn.loss(theta, column.long(), column)
    with pytest.raises(ValueError, match=r"target: expected shape \(4, 5\), got \(3, 5\)"):
        qr_dqn.loss(theta, column.long(), torch.zeros(N - 1, K))
    with pytest.raises(ValueError, match="huber: expected a positive number, got -1"):
        qr_dqn.loss(theta, column.long(), torch.zeros(N, K), huber=-1)
    with pytest.raises(ValueError, match=r"discount: expected shape \(4,\), got \(1,\)"):
        qr_dqn.target(theta, column, column[:1])
    with pytest.raises(ValueError, match=r"next_online_quantiles: expected shape \(4, 3, 5\)"):
        qr_dqn.target(theta, column, column, next_online_quantiles=theta[:1])
