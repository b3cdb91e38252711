"""IQN's loss and network against the paper's formulas, written plainly."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bray_algo.losses import iqn
from bray_algo.networks.quantiles import LevelEmbedding

N, A, K = 4, 3, 5


@given(st.integers(0, 1000), st.sampled_from([0.3, 1.0, 2.0]), st.sampled_from([1, 4, 5]))
def test_the_loss_is_the_papers(seed: int, kappa: float, num_targets: int) -> None:
    rng = np.random.default_rng(seed)
    theta, target = rng.normal(size=(N, A, K)), rng.normal(size=(N, num_targets))
    action, weight, levels = rng.integers(0, A, N), rng.random(N), rng.random((N, K))
    tensors = [torch.tensor(x) for x in (theta, levels, action, target)]
    loss, terms = iqn.loss(*tensors, weight=torch.tensor(weight), huber=kappa)
    rows = []
    for n in range(N):
        total = 0.0
        for i in range(K):
            for j in range(num_targets):
                u = target[n, j] - theta[n, action[n], i]
                size = u * u / 2 if abs(u) <= kappa else kappa * (abs(u) - kappa / 2)
                total += abs(levels[n, i] - (u < 0)) * size / kappa / num_targets
        rows.append(total)
    q = [theta[n, action[n]].mean() for n in range(N)]
    assert loss.item() == pytest.approx(np.mean(weight * rows))
    assert iqn.row_losses(*tensors, huber=kappa).tolist() == pytest.approx(rows)
    assert terms["q"].item() == pytest.approx(np.mean(q))
    assert terms["td_error"].item() == pytest.approx(np.abs(target.mean(1) - q).mean())


def test_the_embedding_is_the_papers() -> None:
    torch.manual_seed(0)
    embedding = LevelEmbedding(3, num_cosines=4)
    features, levels = torch.randn(2, 3), torch.rand(2, K)
    got = embedding(features, levels)
    weight, bias = embedding.layer.weight, embedding.layer.bias
    for n in range(2):
        for k in range(K):
            for j in range(3):
                cosines = [math.cos(math.pi * i * levels[n, k].item()) for i in range(4)]
                phi = sum(c * weight[j, i].item() for i, c in enumerate(cosines)) + bias[j].item()
                wanted = features[n, j].item() * max(0.0, phi)
                assert got[n, k, j].item() == pytest.approx(wanted, abs=1e-5)


def test_a_network_learns_the_quantiles_at_any_level() -> None:
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    embedding = LevelEmbedding(8)
    optimizer = torch.optim.Adam([*network.parameters(), *embedding.parameters()], lr=3e-3)

    def quantiles(levels: torch.Tensor) -> torch.Tensor:
        return network(embedding(torch.ones(len(levels), 8), levels)).transpose(1, 2)

    action = torch.zeros(16, dtype=torch.int64)
    for _ in range(400):
        levels, samples = torch.rand(16, 8), torch.rand(16, 32)  # even on 0 to 1: τ itself
        loss, _ = iqn.loss(quantiles(levels), levels, action, samples, huber=0.05)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    asked = torch.tensor([[0.1, 0.25, 0.5, 0.75, 0.9]])
    np.testing.assert_allclose(quantiles(asked)[0, 0].detach(), asked[0], atol=0.08)


def test_what_does_not_fit_is_refused() -> None:
    theta, column = torch.zeros(N, A, K), torch.zeros(N)
    levels, target = torch.full((N, K), 0.5), torch.zeros(N, K)
    with pytest.raises(ValueError, match="levels: expected"):
        iqn.loss(theta, levels[:, :1], column.long(), target)
    with pytest.raises(ValueError, match="levels: expected"):
        iqn.loss(theta, levels + 1, column.long(), target)
    with pytest.raises(ValueError, match="target: expected"):
        iqn.loss(theta, levels, column.long(), column)
    with pytest.raises(ValueError, match="num_features, num_cosines: expected positive"):
        LevelEmbedding(0)
