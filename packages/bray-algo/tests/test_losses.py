from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bray_algo import behaviour_cloning_loss, policy_gradient_loss, ppo_loss
from bray_algo.distributions import categorical
from bray_algo.losses.ppo import clipped_surrogate, value_error

N, A = 6, 4


def batch(seed: int) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(seed)
    return {
        "logits": torch.tensor(rng.normal(size=(N, A)), requires_grad=True),
        "value": torch.tensor(rng.normal(size=N), requires_grad=True),
        "action": torch.tensor(rng.integers(0, A, N)),
        "old_log_prob": torch.tensor(np.log(rng.uniform(0.05, 0.9, N))),
        "advantage": torch.tensor(rng.normal(size=N)),
        "target": torch.tensor(rng.normal(size=N)),
    }


def softmax(row: np.ndarray) -> np.ndarray:
    weights = np.exp(row - row.max())
    return weights / weights.sum()


@given(st.integers(0, 1000), st.floats(0.05, 0.5))
def test_ppo_is_the_papers_objective(seed: int, clip: float) -> None:
    b = batch(seed)
    loss, terms = ppo_loss(**b, clip=clip, value_coefficient=0.7, entropy_coefficient=0.03)
    objective = value_loss = entropy = 0.0
    for i in range(N):  # equations 7 and 9, row by row
        p = softmax(b["logits"][i].detach().numpy())
        ratio = p[int(b["action"][i])] / math.exp(float(b["old_log_prob"][i]))
        advantage = float(b["advantage"][i])
        clipped = min(max(ratio, 1 - clip), 1 + clip)
        objective += min(ratio * advantage, clipped * advantage) / N
        value_loss += (b["value"][i].item() - b["target"][i].item()) ** 2 / N
        entropy += -float((p * np.log(p)).sum()) / N
    assert loss.item() == pytest.approx(-objective + 0.7 * value_loss - 0.03 * entropy)
    assert terms["policy_loss"].item() == pytest.approx(-objective)
    assert terms["value_loss"].item() == pytest.approx(value_loss)
    assert terms["entropy"].item() == pytest.approx(entropy)
    assert terms["approx_kl"].item() >= 0


@pytest.mark.parametrize("seed", range(5))
def test_gradients_agree_with_finite_differences(seed: int) -> None:
    b = batch(seed)

    def ppo(logits: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return ppo_loss(**{**b, "logits": logits, "value": value}, entropy_coefficient=0.1)[0]

    def gradient(logits: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        columns = (b["action"], b["advantage"], b["target"])
        return policy_gradient_loss(logits, value, *columns)[0]

    def clipped_value(logits: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        old = {"old_value": b["target"] / 2, "value_clip": 0.3}
        return ppo_loss(**{**b, "logits": logits, "value": value}, **old)[0]

    def cloning(logits: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return behaviour_cloning_loss(logits, b["action"])[0] + 0 * value.sum()

    for function in (ppo, gradient, clipped_value, cloning):
        assert torch.autograd.gradcheck(function, (b["logits"], b["value"]))


def test_on_policy_ppo_has_the_gradient_of_the_policy_gradient() -> None:
    b = batch(0)
    b["old_log_prob"] = categorical.log_prob(b["logits"], b["action"]).detach()
    columns = (b["value"], b["action"], b["advantage"], b["target"])
    losses = (
        ppo_loss(**b)[0],
        policy_gradient_loss(b["logits"], *columns, entropy_coefficient=0.0)[0],
    )
    one, other = (torch.autograd.grad(loss, b["logits"], retain_graph=True)[0] for loss in losses)
    assert torch.allclose(one, other)


@pytest.mark.parametrize("sign", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize("old_log_prob", [-120.0, 120.0])
def test_extreme_ratios_stay_finite(sign: float, old_log_prob: float) -> None:
    logits = torch.randn(N, A, requires_grad=True)
    columns = (torch.full((N,), old_log_prob), torch.full((N,), sign), torch.zeros(N))
    action = torch.zeros(N, dtype=torch.int64)
    loss, terms = ppo_loss(logits, torch.zeros(N), action, *columns)
    loss.backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(term) for term in terms.values())
    assert torch.isfinite(logits.grad).all()  # type: ignore[arg-type]


def test_no_gradient_flows_into_targets() -> None:
    b = batch(2)
    for name in ("old_log_prob", "advantage", "target"):
        b[name].requires_grad_()
    columns = (b["value"], b["action"], b["advantage"], b["target"])
    (ppo_loss(**b)[0] + policy_gradient_loss(b["logits"], *columns)[0]).backward()
    assert all(b[name].grad is None for name in ("old_log_prob", "advantage", "target"))
    assert b["logits"].grad is not None


@given(st.integers(0, 1000), st.floats(0.05, 1))
def test_the_clipped_value_error_is_the_greater_one(seed: int, clip: float) -> None:
    rng = np.random.default_rng(seed)
    value, old, target = rng.normal(size=(3, N))
    got = value_error(
        *map(torch.tensor, (value, target)), value_clip=clip, old_value=torch.tensor(old)
    )
    want = 0.0
    for v, v_old, v_target in zip(value, old, target, strict=True):
        held = v_old + min(max(v - v_old, -clip), clip)
        want += max((v - v_target) ** 2, (held - v_target) ** 2) / N
    assert got.item() == pytest.approx(want)
    assert got >= value_error(*map(torch.tensor, (value, target)))


def test_the_surrogate_takes_any_distributions_log_prob() -> None:
    b = batch(3)
    log_prob = categorical.log_prob(b["logits"], b["action"])
    loss, terms = clipped_surrogate(log_prob, b["old_log_prob"], b["advantage"])
    whole = ppo_loss(**b)[1]
    assert torch.equal(loss.detach(), whole["policy_loss"])
    assert torch.equal(terms["clip_fraction"], whole["clip_fraction"])


def test_behaviour_cloning() -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 3.0]])
    loss, terms = behaviour_cloning_loss(logits, torch.tensor([0, 0]))
    want = (
        -(math.log(softmax(np.array([2.0, 0]))[0]) + math.log(softmax(np.array([0.0, 3]))[0])) / 2
    )
    assert loss.item() == pytest.approx(want, rel=1e-5)
    assert terms["accuracy"].item() == 0.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": torch.zeros(N)}, r"logits: expected \[N, A\], not empty, got shape \(6,\)"),
        ({"logits": torch.zeros(0, A)}, r"logits: expected .* got shape \(0, 4\)"),
        ({"advantage": torch.zeros(N, 1)}, r"advantage: expected shape \(6,\), got \(6, 1\): flat"),
        ({"action": torch.zeros(N - 1)}, r"action: expected shape \(6,\), got \(5,\)"),
        ({"clip": 0.0}, "clip: expected a positive number, got 0.0"),
        ({"value_clip": 0.2}, "got value_clip alone: give both or none"),
        ({"old_value": torch.zeros(N)}, "got old_value alone: give both or none"),
        ({"value_clip": -1.0, "old_value": torch.zeros(N)}, "value_clip: expected a positive"),
        ({"value_clip": 1.0, "old_value": torch.zeros(2)}, r"old_value: expected shape \(6,\)"),
    ],
)
def test_nonsense_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ppo_loss(**{**batch(0), **change})


def test_the_other_losses_check_their_shapes_too() -> None:
    b = batch(0)
    with pytest.raises(ValueError, match=r"target: expected shape \(6,\), got \(2,\)"):
        policy_gradient_loss(b["logits"], b["value"], b["action"], b["advantage"], torch.zeros(2))
    with pytest.raises(ValueError, match=r"action: expected shape \(6,\), got \(2,\)"):
        behaviour_cloning_loss(b["logits"], torch.zeros(2))
    with pytest.raises(ValueError, match=r"advantage: expected shape \(6,\), got \(2,\)"):
        clipped_surrogate(b["value"], b["value"], torch.zeros(2))
