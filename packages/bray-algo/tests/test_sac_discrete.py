from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bray_algo.distributions import categorical
from bray_algo.losses import sac_discrete

K, N, A = 2, 5, 3


@given(st.integers(0, 1000), st.floats(0, 2))
def test_against_sums_over_actions(seed: int, alpha: float) -> None:
    rng = np.random.default_rng(seed)
    q, logits = rng.normal(size=(K, N, A)), rng.normal(size=(N, A))
    reward, discount = rng.normal(size=N), rng.choice([0.0, 0.9], N)
    target = sac_discrete.target(*map(torch.tensor, (q, logits, reward, discount)), alpha=alpha)
    loss, terms = sac_discrete.actor_loss(torch.tensor(q), torch.tensor(logits), alpha=alpha)
    wanted_loss = wanted_entropy = wanted_q = 0.0
    for i in range(N):
        p = np.exp(logits[i]) / np.exp(logits[i]).sum()
        soft = sum(p[a] * (q[:, i, a].min() - alpha * math.log(p[a])) for a in range(A))
        assert target[i].item() == pytest.approx(reward[i] + discount[i] * soft)
        wanted_loss -= soft / N
        wanted_entropy -= sum(p * np.log(p)) / N
        wanted_q += sum(p * q[:, i].min(0)) / N
    assert loss.item() == pytest.approx(wanted_loss)
    assert terms["entropy"].item() == pytest.approx(wanted_entropy)
    assert terms["q"].item() == pytest.approx(wanted_q, abs=1e-9)
    temperature, _ = sac_discrete.temperature_loss(
        torch.tensor(0.2), torch.tensor(logits), target_entropy=0.7
    )
    want = math.exp(0.2) * (wanted_entropy - 0.7)
    assert temperature.item() == pytest.approx(want, rel=1e-4, abs=1e-6)


@given(st.integers(0, 1000), st.floats(0.1, 2))
def test_the_softmax_of_values_is_the_optimum(seed: int, alpha: float) -> None:
    rng = np.random.default_rng(seed)
    q = torch.tensor(rng.normal(size=(1, N, A)))
    logits = (q[0] / alpha).requires_grad_()
    sac_discrete.actor_loss(q, logits, alpha=alpha)[0].backward()
    assert logits.grad is not None
    assert logits.grad.abs().max() < 1e-12
    value = sac_discrete.target(
        q, logits, torch.zeros(N).double(), torch.ones(N).double(), alpha=alpha
    )
    assert torch.allclose(value, alpha * torch.logsumexp(q[0] / alpha, -1))


def test_illegal_actions_do_not_count_whatever_their_values() -> None:
    q = torch.tensor([[[1.0, -math.inf, math.nan]], [[2.0, math.inf, 0.0]]])
    logits = torch.tensor([[0.3, -math.inf, -math.inf]], requires_grad=True)
    loss, terms = sac_discrete.actor_loss(q, logits, alpha=0.5)
    loss.backward()
    assert loss.item() == pytest.approx(-1.0)
    assert terms["entropy"].item() == pytest.approx(0.0)
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    got = sac_discrete.target(q, logits, torch.zeros(1), torch.ones(1), alpha=0.5)
    assert got.item() == pytest.approx(1.0)


def test_gradients_agree_with_finite_differences() -> None:
    rng = np.random.default_rng(0)
    q = torch.tensor(rng.normal(size=(K, N, A)), requires_grad=True)
    logits = torch.tensor(rng.normal(size=(N, A)), requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x: sac_discrete.actor_loss(q, x, alpha=0.3)[0], (logits,)
    )
    sac_discrete.actor_loss(q, logits, alpha=0.3)[0].backward()
    assert q.grad is None  # the critics are constants here
    log_alpha = torch.zeros((), requires_grad=True)
    logits.grad = None
    sac_discrete.temperature_loss(log_alpha, logits, target_entropy=0.5)[0].backward()
    assert logits.grad is None
    entropy = categorical.entropy(logits).mean().item()
    assert log_alpha.grad is not None
    assert log_alpha.grad.item() == pytest.approx(entropy - 0.5, rel=1e-4)


def test_values_of_the_actions_taken() -> None:
    q, action = torch.rand(K, N, A), torch.tensor([0, 1, 2, 1, 0])
    got = sac_discrete.chosen(q, action)
    assert got.tolist() == [[q[k, i, a].item() for i, a in enumerate(action)] for k in range(K)]


def test_nonsense_is_refused() -> None:
    q, logits, column = torch.zeros(K, N, A), torch.zeros(N, A), torch.zeros(N)
    with pytest.raises(ValueError, match=r"next_logits: expected shape \(5, 3\), got \(5, 2\)"):
        sac_discrete.target(q, logits[:, :2], column, column, alpha=0.1)
    with pytest.raises(ValueError, match=r"q: expected \[K, N, A\], not empty"):
        sac_discrete.actor_loss(logits, logits, alpha=0.1)
    with pytest.raises(ValueError, match=r"action: expected shape \(5,\), got \(4,\)"):
        sac_discrete.chosen(q, column[1:])
    with pytest.raises(ValueError, match=r"logits: expected \[N, A\], not empty"):
        sac_discrete.temperature_loss(torch.zeros(()), column, target_entropy=0.1)
