from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from bray_algo.losses import adversarial


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


@given(
    st.lists(st.floats(-20, 20), min_size=1, max_size=5),
    st.lists(st.floats(-20, 20), min_size=1, max_size=5),
)
def test_the_loss_is_the_papers(expert: list[float], policy: list[float]) -> None:
    tensors = torch.tensor(expert, dtype=torch.float64), torch.tensor(policy, dtype=torch.float64)
    loss, terms = adversarial.discriminator_loss(*tensors)
    want = -sum(math.log(sigmoid(x)) for x in expert) / len(expert)
    want -= sum(math.log(sigmoid(-x)) for x in policy) / len(policy)
    assert loss.item() == pytest.approx(want)
    assert terms["expert_accuracy"].item() == pytest.approx(np.mean(np.array(expert) > 0))
    assert terms["policy_accuracy"].item() == pytest.approx(np.mean(np.array(policy) <= 0))


@given(st.floats(-20, 20))
def test_rewards(logit: float) -> None:
    tensor = torch.tensor(logit, dtype=torch.float64, requires_grad=True)
    d = sigmoid(logit)
    positive, negative, log_odds = (
        adversarial.gail_reward(tensor, kind)  # type: ignore[arg-type]
        for kind in ("positive", "negative", "log_odds")
    )
    assert positive.item() == pytest.approx(-math.log(sigmoid(-logit)))
    assert negative.item() == pytest.approx(math.log(d))
    assert log_odds.item() == pytest.approx(math.log(d) - math.log(sigmoid(-logit)), abs=1e-9)
    assert not positive.requires_grad


@given(st.floats(-5, 5), st.floats(-5, 0))
def test_airl_is_the_papers_discriminator(f: float, log_prob: float) -> None:
    d = math.exp(f) / (math.exp(f) + math.exp(log_prob))
    logit = adversarial.airl_logit(torch.tensor([f]), torch.tensor([log_prob]))
    assert sigmoid(logit.item()) == pytest.approx(d, rel=1e-4)
    reward = adversarial.gail_reward(logit, "log_odds").item()
    assert reward == pytest.approx(math.log(d) - math.log(1 - d), rel=1e-3, abs=1e-5)


def test_airls_shaping_telescopes() -> None:
    # Σ γ^t f_t = Σ γ^t g_t − h(s_0) over an episode that terminates.
    g, h = torch.randn(4), torch.randn(5)
    h[4] = math.nan  # after the end: not read
    discount = torch.tensor([0.9, 0.9, 0.9, 0.0])
    f = adversarial.airl_advantage(g, h[:4], h[1:], discount)
    powers = 0.9 ** torch.arange(4)
    assert (powers @ f).item() == pytest.approx((powers @ g - h[0]).item(), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("size", [1e4, 1e30])
def test_sure_discriminators_stay_finite(size: float) -> None:
    logit = torch.tensor([size, -size], requires_grad=True)
    loss, _ = adversarial.discriminator_loss(logit, logit)
    loss.backward()
    assert torch.isfinite(loss)
    assert logit.grad is not None
    assert torch.isfinite(logit.grad).all()
    assert torch.isfinite(adversarial.gail_reward(logit)).all()


def test_gradients_agree_with_finite_differences() -> None:
    expert, policy = (torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(
        lambda x, y: adversarial.discriminator_loss(x, y)[0], (expert, policy)
    )


def test_the_gradient_penalty_of_a_linear_discriminator_is_its_weights() -> None:
    linear = nn.Linear(3, 1)
    network = nn.Sequential(linear, nn.Flatten(0))
    penalty = adversarial.gradient_penalty(network, torch.randn(5, 3))
    assert penalty.item() == pytest.approx(linear.weight.square().sum().item(), rel=1e-5)
    penalty.backward()
    assert torch.allclose(linear.weight.grad, 2 * linear.weight)  # type: ignore[arg-type]


def test_a_trained_discriminator_gives_the_log_ratio_of_densities() -> None:
    # Expert N(1, 1), policy N(−1, 1): the best logit is log p_E / p_π = 2 x.
    generator = torch.Generator().manual_seed(0)
    expert = 1 + torch.randn(4000, 1, generator=generator)
    policy = -1 + torch.randn(4000, 1, generator=generator)
    network = nn.Sequential(nn.Linear(1, 1), nn.Flatten(0))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.05)
    for _ in range(200):
        optimizer.zero_grad()
        adversarial.discriminator_loss(network(expert), network(policy))[0].backward()
        optimizer.step()
    got = network(torch.tensor([[-1.0], [0.0], [1.0]])).tolist()
    assert got == pytest.approx([-2, 0, 2], abs=0.3)


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expert_logit: expected \[N\], not empty, got shape \(3"):
        adversarial.discriminator_loss(torch.zeros(3, 1), torch.zeros(3))
    with pytest.raises(ValueError, match=r"policy_logit: expected \[N\], not empty"):
        adversarial.discriminator_loss(torch.zeros(3), torch.zeros(0))
    with pytest.raises(ValueError, match=r"kind: expected 'positive', .* got 'both'"):
        adversarial.gail_reward(torch.zeros(3), "both")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"log_prob: expected shape \(3,\), got \(1,\)"):
        adversarial.airl_logit(torch.zeros(3), torch.zeros(1))
    column = torch.zeros(3)
    with pytest.raises(ValueError, match=r"next_potential: expected shape \(3,\), got \(3, 1\)"):
        adversarial.airl_advantage(column, column, column[:, None], column)
