from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bray_algo import (
    behaviour_cloning_loss,
    categorical,
    elo_update,
    gaussian,
    pfsp_weights,
    policy_gradient_loss,
    ppo_loss,
)

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

    for function in (ppo, gradient):
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


def test_extreme_ratios_stay_finite() -> None:
    b = batch(1)
    b["old_log_prob"] = torch.full((N,), -80.0, dtype=torch.float64)
    b["advantage"] = b["advantage"].abs()
    loss, _ = ppo_loss(**b)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(b["logits"].grad).all()  # type: ignore[arg-type]


def test_behaviour_cloning() -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 3.0]])
    loss, terms = behaviour_cloning_loss(logits, torch.tensor([0, 0]))
    want = (
        -(math.log(softmax(np.array([2.0, 0]))[0]) + math.log(softmax(np.array([0.0, 3]))[0])) / 2
    )
    assert loss.item() == pytest.approx(want, rel=1e-5)
    assert terms["accuracy"].item() == 0.5


def test_shapes_are_checked() -> None:
    b = batch(0)
    with pytest.raises(ValueError, match=r"logits: expected \[N, A\], got shape \(6,\)"):
        ppo_loss(**{**b, "logits": b["value"]})
    with pytest.raises(ValueError, match=r"expected columns of shape \(6,\)"):
        ppo_loss(**{**b, "advantage": torch.zeros(N, 1)})


class TestCategorical:
    @given(st.integers(0, 1000))
    def test_against_the_definitions(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        x, y = rng.normal(size=(2, A)) * 5
        p, q = softmax(x), softmax(y)
        logits, others = torch.tensor(x), torch.tensor(y)
        assert categorical.entropy(logits).item() == pytest.approx(-(p * np.log(p)).sum(), abs=1e-9)
        kl = categorical.kl(logits, others).item()
        assert kl == pytest.approx((p * np.log(p / q)).sum(), abs=1e-9)
        assert kl >= -1e-12
        assert categorical.log_prob(logits, torch.tensor(2)).item() == pytest.approx(np.log(p[2]))
        assert categorical.mode(logits).item() == p.argmax()

    def test_illegal_actions_have_no_chance_and_no_gradient(self) -> None:
        raw = torch.randn(3, A, requires_grad=True)
        legal = torch.tensor([[True, False, True, True], [False, False, False, True], [True] * 4])
        logits = categorical.mask(raw, legal)
        drawn = torch.stack([categorical.sample(logits) for _ in range(200)])
        assert legal.gather(1, drawn.T).all()
        assert categorical.entropy(logits)[1].item() == pytest.approx(0, abs=1e-6)
        categorical.entropy(logits).sum().backward()
        assert raw.grad is not None
        assert torch.isfinite(raw.grad).all()
        assert not raw.grad[~legal].any()
        assert torch.isfinite(categorical.kl(logits, torch.zeros(3, A))).all()

    def test_infinite_logits_are_safe(self) -> None:
        logits = torch.tensor([[0.0, -math.inf], [1e30, 0.0]])
        assert torch.isfinite(categorical.log_probs(logits)).all()
        assert torch.isfinite(categorical.entropy(logits)).all()

    def test_samples_follow_the_probabilities(self) -> None:
        logits = torch.tensor([0.0, 1.0, 2.0]).expand(20_000, 3)
        counts = torch.bincount(categorical.sample(logits, torch.Generator().manual_seed(0)))
        p = softmax(np.array([0.0, 1.0, 2.0]))
        deviation = 5 * np.sqrt(20_000 * p * (1 - p))  # binomial, five standard deviations
        assert (np.abs(counts.numpy() - 20_000 * p) < deviation).all()

    def test_a_row_without_a_legal_action_is_refused(self) -> None:
        with pytest.raises(ValueError, match="one legal action or more in each row"):
            categorical.mask(torch.zeros(2, 2), torch.tensor([[True, True], [False, False]]))
        with pytest.raises(ValueError, match="legal: expected bool"):
            categorical.mask(torch.zeros(2, 2), torch.ones(2, 2))


class TestGaussian:
    @given(st.integers(0, 1000))
    def test_against_torch(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        mean_p, log_p, mean_q, log_q, action = (torch.tensor(rng.normal(size=3)) for _ in range(5))
        p = torch.distributions.Normal(mean_p, log_p.exp())
        q = torch.distributions.Normal(mean_q, log_q.exp())
        kl = torch.distributions.kl_divergence(p, q).sum()
        assert torch.allclose(gaussian.log_prob(mean_p, log_p, action), p.log_prob(action).sum())
        assert torch.allclose(gaussian.entropy(mean_p, log_p), p.entropy().sum())
        assert torch.allclose(gaussian.kl(mean_p, log_p, mean_q, log_q), kl)

    def test_samples_have_mean_and_spread(self) -> None:
        mean, log_std = torch.zeros(20_000, 2) + 3, torch.zeros(20_000, 2) - 1
        drawn = gaussian.sample(mean, log_std, torch.Generator().manual_seed(0))
        error = 5 * math.exp(-1) / math.sqrt(20_000)  # five standard errors
        assert (drawn.mean(0) - 3).abs().max() < error
        assert (drawn.std(0) - math.exp(-1)).abs().max() < error
        assert torch.equal(gaussian.mode(mean, log_std), mean)


class TestLeague:
    def test_elo_is_zero_sum_and_moves_towards_the_result(self) -> None:
        assert elo_update(1500, 1500, 1.0) == (1508.0, 1492.0)
        one, other = elo_update(1700, 1500, 0.0)
        assert one + other == pytest.approx(3200)
        assert one < 1690
        with pytest.raises(ValueError, match="score: expected 0 to 1, got 2"):
            elo_update(0, 0, 2)

    def test_pfsp(self) -> None:
        assert pfsp_weights([0.0, 0.5, 1.0]).tolist() == pytest.approx([0.8, 0.2, 0.0])
        assert pfsp_weights([0.0, 0.5, 1.0], "var").tolist() == [0, 1, 0]
        assert pfsp_weights([1.0, 1.0]).tolist() == [0.5, 0.5]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [(([],), "win_rates"), (([2.0],), "win_rates"), (([0.5], "soft"), "kind: expected 'hard'")],
    )
    def test_nonsense_is_refused(self, arguments: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            pfsp_weights(*arguments)


def test_nothing_of_bray_is_imported() -> None:
    script = (
        "import sys, bray_algo; "
        "sys.exit(', '.join(m for m in sys.modules if m.startswith('bray_') "
        "and m.split('.')[0] != 'bray_algo') or 0)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
