"""TQC's losses against the paper's sums, written as loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bray_algo.losses import tqc

K, N, M = 3, 4, 5


@given(st.integers(0, 1000), st.integers(0, 4), st.floats(0, 2))
def test_the_target_leaves_out_the_greatest_of_all_critics(
    seed: int, dropped: int, alpha: float
) -> None:
    rng = np.random.default_rng(seed)
    z, log_prob, reward = rng.normal(size=(K, N, M)), rng.normal(size=N), rng.normal(size=N)
    discount = rng.choice([0.0, 0.9], N)
    found = tqc.target(
        *map(torch.tensor, (z, log_prob, reward, discount)), alpha=alpha, dropped=dropped
    )
    assert found.shape == (N, K * (M - dropped))
    for i in range(N):
        kept = sorted(z[:, i].flatten())[: K * (M - dropped)]
        want = [reward[i] + discount[i] * (atom - alpha * log_prob[i]) for atom in kept]
        np.testing.assert_allclose(sorted(found[i].numpy()), want)


@given(st.integers(0, 1000), st.floats(0.2, 3.0))
def test_the_critics_loss_is_the_papers_sum(seed: int, huber: float) -> None:
    rng = np.random.default_rng(seed)
    z, y, weight = rng.normal(size=(K, N, M)) * 2, rng.normal(size=(N, 7)), rng.random(N)
    want = 0.0
    for i in range(N):
        for critic in range(K):
            for m in range(M):
                tau = (2 * m + 1) / (2 * M)
                for atom in y[i]:
                    u = atom - z[critic, i, m]
                    size = abs(u)
                    h = 0.5 * u * u if size <= huber else huber * (size - 0.5 * huber)
                    want += weight[i] * abs(tau - (u < 0)) * h / (M * 7) / N
    loss, terms = tqc.critic_loss(
        torch.tensor(z), torch.tensor(y), weight=torch.tensor(weight), huber=huber
    )
    assert loss.item() == pytest.approx(want)
    assert terms["q"].item() == pytest.approx(z.mean())
    error = np.abs(y.mean(1)[None] - z.mean(2)).mean()
    assert terms["td_error"].item() == pytest.approx(error)


def test_the_policy_climbs_the_mean_of_all_quantiles() -> None:
    rng = np.random.default_rng(0)
    z, log_prob = rng.normal(size=(K, N, M)), rng.normal(size=N)
    loss, terms = tqc.actor_loss(torch.tensor(z), torch.tensor(log_prob), alpha=0.3)
    want = np.mean([0.3 * log_prob[i] - z[:, i].mean() for i in range(N)])
    assert loss.item() == pytest.approx(want)
    assert terms["entropy"].item() == pytest.approx(-log_prob.mean())


def test_what_follows_a_termination_does_not_count() -> None:
    nothing = torch.full((K, N, M), torch.nan)
    found = tqc.target(nothing, torch.zeros(N), torch.ones(N), torch.zeros(N), alpha=0.1)
    assert torch.equal(found, torch.ones(N, K * (M - 2)))


def test_quantiles_learn_a_distribution() -> None:
    torch.manual_seed(0)
    quantiles = torch.zeros(1, 1, 5, requires_grad=True)
    optimizer = torch.optim.Adam([quantiles], lr=0.02)
    atoms = torch.linspace(0, 10, 101)[None]
    for _ in range(2_000):
        optimizer.zero_grad()
        tqc.critic_loss(quantiles, atoms, huber=0.01)[0].backward()
        optimizer.step()
    torch.testing.assert_close(
        quantiles.detach().flatten(), torch.tensor([1.0, 3.0, 5.0, 7.0, 9.0]), atol=0.2, rtol=0
    )


@pytest.mark.parametrize("dropped", [-1, 5, 1.5])
def test_dropping_all_is_refused(dropped: float) -> None:
    with pytest.raises(ValueError, match="dropped: expected"):
        tqc.target(
            torch.zeros(K, N, M),
            *[torch.zeros(N)] * 3,
            alpha=0.1,
            dropped=dropped,  # type: ignore[arg-type]
        )
