"""PPO's parts for any distribution, against the papers' equations in float64 loops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bray_algo import ppo_loss
from bray_algo.distributions import gaussian
from bray_algo.losses import ppo

N = 7


def batch(seed: int) -> dict[str, Tensor]:
    rng = np.random.default_rng(seed)
    columns = ("log_prob", "entropy", "value", "old_log_prob", "advantage", "target")
    return {name: torch.from_numpy(rng.normal(size=N)) for name in columns}


def surrogate(ratio: float, advantage: float, clip: float, dual_clip: float | None) -> float:
    """One sample of L^CLIP, of Ye et al. 2020 with a dual clip."""
    objective = min(ratio * advantage, min(max(ratio, 1 - clip), 1 + clip) * advantage)
    if dual_clip is not None and advantage < 0:
        return max(objective, dual_clip * advantage)
    return objective


@given(st.integers(0, 1000), st.floats(0.05, 0.5), st.none() | st.floats(1.5, 4))
def test_the_loss_is_the_papers(seed: int, clip: float, dual_clip: float | None) -> None:
    b = batch(seed)
    coefficients = {"value_coefficient": 0.7, "entropy_coefficient": 0.03}
    loss, terms = ppo.loss(**b, clip=clip, dual_clip=dual_clip, **coefficients)
    objective = value_loss = kl = clipped = 0.0
    for i in range(N):
        ratio = math.exp(b["log_prob"][i] - b["old_log_prob"][i])
        objective += surrogate(ratio, float(b["advantage"][i]), clip, dual_clip) / N
        value_loss += float(b["value"][i] - b["target"][i]) ** 2 / N
        kl += (ratio - 1 - math.log(ratio)) / N
        clipped += (abs(ratio - 1) > clip) / N
    entropy = float(b["entropy"].mean())
    assert loss.item() == pytest.approx(-objective + 0.7 * value_loss - 0.03 * entropy)
    assert terms["policy_loss"].item() == pytest.approx(-objective)
    assert terms["approx_kl"].item() == pytest.approx(kl)
    assert terms["clip_fraction"].item() == pytest.approx(clipped)


@given(st.integers(0, 1000), st.integers(1, N), st.sampled_from([np.nan, np.inf, 1e30]))
def test_samples_that_are_not_valid_count_nowhere(seed: int, count: int, rubbish: float) -> None:
    b = batch(seed)
    b["old_value"] = b["target"] / 2
    rest = {"value_clip": 0.2, "entropy_coefficient": 0.1, "dual_clip": 3.0}
    want_loss, want = ppo.loss(**{n: x[:count] for n, x in b.items()}, **rest)
    valid = torch.arange(N) < count
    for column in b.values():
        column[count:] = rubbish
        column.requires_grad_()
    loss, terms = ppo.loss(**b, **rest, valid=valid)
    loss.backward()
    assert loss.item() == pytest.approx(want_loss.item())
    for name, term in terms.items():
        assert term.item() == pytest.approx(want[name].item()), name
    for name in ("log_prob", "entropy", "value"):
        grad = b[name].grad
        assert grad is not None
        assert torch.isfinite(grad).all()
        assert not grad[count:].any()
    assert all(b[name].grad is None for name in ("old_log_prob", "advantage", "target"))


def test_without_a_valid_sample_the_loss_is_zero() -> None:
    loss, terms = ppo.loss(**batch(0), valid=torch.zeros(N, dtype=torch.bool))
    assert loss == 0
    assert not any(terms.values())


@given(st.integers(0, 1000))
def test_a_shape_of_time_and_batch_is_the_flat_one(seed: int) -> None:
    b = {name: column[:6] for name, column in batch(seed).items()}
    flat, _ = ppo.loss(**b)
    shaped, _ = ppo.loss(**{name: column.reshape(2, 3) for name, column in b.items()})
    assert torch.allclose(flat, shaped)


def test_it_takes_a_gaussian_policy() -> None:
    torch.manual_seed(0)
    mean = torch.randn(N, 2, dtype=torch.float64, requires_grad=True)
    log_std = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    action, b = torch.randn(N, 2, dtype=torch.float64), batch(0)

    def function(mean: Tensor, log_std: Tensor) -> Tensor:
        log_prob, entropy = (
            gaussian.log_prob(mean, log_std, action),
            gaussian.entropy(mean, log_std),
        )
        whole = {**b, "log_prob": log_prob, "entropy": entropy, "old_log_prob": b["value"] - 3}
        return ppo.loss(**whole, entropy_coefficient=0.1, dual_clip=3.0)[0]

    assert torch.autograd.gradcheck(function, (mean, log_std))


@pytest.mark.parametrize("old_log_prob", [-120.0, 120.0])
def test_the_dual_clip_bounds_what_a_bad_action_costs(old_log_prob: float) -> None:
    log_prob = torch.zeros(N, requires_grad=True)
    columns = (torch.full((N,), old_log_prob), -torch.ones(N))
    loss, _ = ppo.clipped_surrogate(log_prob, *columns, dual_clip=3.0)
    loss.backward()
    assert loss.item() == (3.0 if old_log_prob < 0 else pytest.approx(0.8))
    assert not log_prob.grad.any()  # type: ignore[union-attr]


@given(st.integers(0, 1000), st.floats(0, 10))
def test_the_kl_penalty_is_equation_8(seed: int, coefficient: float) -> None:
    b = batch(seed)
    kl = b["target"].square()
    columns = (b["log_prob"], b["old_log_prob"], b["advantage"])
    loss, terms = ppo.kl_penalised_surrogate(*columns, kl, kl_coefficient=coefficient)
    want = 0.0
    for i in range(N):
        ratio = math.exp(b["log_prob"][i] - b["old_log_prob"][i])
        want += (ratio * float(b["advantage"][i]) - coefficient * float(kl[i])) / N
    assert loss.item() == pytest.approx(-want)
    assert terms["kl"].item() == pytest.approx(float(kl.mean()))


@pytest.mark.parametrize(
    ("kl", "want"), [(0.0, 1.0), (0.0066, 1.0), (0.0067, 2.0), (0.0149, 2.0), (0.0151, 4.0)]
)
def test_the_penalty_doubles_and_halves(kl: float, want: float) -> None:
    assert ppo.next_kl_coefficient(2.0, kl, target_kl=0.01) == want


@given(st.lists(st.sampled_from([0.0, 0.01, 1.0, math.inf]), max_size=80))
def test_the_penalty_stays_finite_and_comes_back(kls: list[float]) -> None:
    coefficient = 1.0
    for kl in kls + [0.0] * 50:
        coefficient = ppo.next_kl_coefficient(coefficient, kl, target_kl=0.01)
        assert 1e-6 <= coefficient <= 1e6
    assert coefficient == 1e-6
    assert ppo.next_kl_coefficient(coefficient, 1.0, target_kl=0.01) == 2e-6


def test_an_adaptive_penalty_holds_the_kl_near_its_target() -> None:
    """A Gaussian's mean climbs a slope; the KL of each update should settle near the target."""
    mean = torch.zeros(1, 1, dtype=torch.float64)
    log_std = torch.zeros(1, dtype=torch.float64)
    coefficient, kls = 0.25, []
    for _ in range(25):
        old, mean = mean, mean.clone().requires_grad_()
        action = old + torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
        old_log_prob = gaussian.log_prob(old.expand(2, 1), log_std, action)
        advantage = torch.tensor([-1.0, 1.0], dtype=torch.float64)
        for _ in range(20):
            log_prob = gaussian.log_prob(mean.expand(2, 1), log_std, action)
            kl = gaussian.kl(old, log_std, mean, log_std).expand(2)
            loss, _ = ppo.kl_penalised_surrogate(
                log_prob, old_log_prob, advantage, kl, kl_coefficient=coefficient
            )
            (grad,) = torch.autograd.grad(loss, mean)
            mean = (mean - 0.5 / (1 + coefficient) * grad).detach().requires_grad_()
        kls.append(float(gaussian.kl(old, log_std, mean.detach(), log_std)))
        mean = mean.detach()
        coefficient = ppo.next_kl_coefficient(coefficient, kls[-1], target_kl=0.02)
    assert all(0.02 / 4 < kl < 0.02 * 4 for kl in kls[-10:])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"entropy": torch.zeros(2)}, r"entropy: expected shape \(7,\), got \(2,\): flatten"),
        ({"target": torch.zeros(N, 1)}, r"target: expected shape \(7,\), got \(7, 1\)"),
        ({"clip": -0.1}, r"clip: expected a positive number, got -0\.1"),
        ({"dual_clip": 1.0}, r"dual_clip: expected more than 1, got 1\.0"),
        ({"valid": torch.ones(N)}, r"valid: expected bool \(7,\), got torch\.float32"),
        ({"valid": torch.ones(2)}, r"valid: expected bool \(7,\), got torch\.float32 \(2,\)"),
        ({"log_prob": torch.zeros(0)}, r"one sample or more, got shape \(0,\)"),
    ],
)
def test_nonsense_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ppo.loss(**{**batch(0), **change})


def test_nonsense_of_the_penalty_is_refused() -> None:
    column = torch.zeros(N)
    with pytest.raises(ValueError, match=r"kl: expected shape \(7,\), got \(1,\)"):
        ppo.kl_penalised_surrogate(*[column] * 3, torch.zeros(1), kl_coefficient=1.0)
    with pytest.raises(ValueError, match="kl_coefficient: expected 0 or more, got nan"):
        ppo.kl_penalised_surrogate(*[column] * 4, kl_coefficient=math.nan)
    with pytest.raises(ValueError, match="kl: expected a number, got nan"):
        ppo.next_kl_coefficient(1.0, math.nan, target_kl=0.01)
    with pytest.raises(ValueError, match="target_kl: expected a positive number, got 0"):
        ppo.next_kl_coefficient(1.0, 0.1, target_kl=0)


def test_the_categorical_loss_takes_a_dual_clip() -> None:
    logits, zeros = torch.tensor([[50.0, 0.0]]), torch.zeros(1)
    columns = (torch.tensor([0]), torch.tensor([-9.0]), -torch.ones(1), zeros)
    loss, _ = ppo_loss(logits, zeros, *columns, dual_clip=3.0)
    assert loss.item() == pytest.approx(3.0)
