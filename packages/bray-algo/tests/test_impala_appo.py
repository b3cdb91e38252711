"""A2C, IMPALA and APPO against their papers: V-trace and surrogates as float64 loops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bray_algo import gae, n_step
from bray_algo.losses import a2c, appo, ppo
from bray_algo.losses import impala as impala

T, B, GAMMA = 6, 3, 0.9


def batch(seed: int) -> dict[str, Tensor]:
    rng = np.random.default_rng(seed)
    columns = ("log_prob", "entropy", "value", "behaviour_log_prob", "reward")
    p = {name: torch.from_numpy(rng.normal(size=(T, B))) for name in columns}
    p["final_value"] = torch.from_numpy(rng.normal(size=B))
    p["terminated"] = torch.from_numpy(rng.random((T, B)) < 0.2)
    p["length"] = torch.from_numpy(rng.integers(1, T + 1, B))
    return p


def loop(p: dict[str, Tensor], log_prob: Tensor, rho_bar: float = 1.0, c_bar: float = 1.0) -> Any:
    """V-trace for a policy with `log_prob`: (t, b, v_t, r + γ v_{t+1} − V_t, ρ_t) a valid step."""
    for b in range(B):
        length = int(p["length"][b])
        following_value = following_target = float(p["final_value"][b])
        for t in reversed(range(length)):
            if bool(p["terminated"][t, b]):
                following_value = following_target = 0.0
            ratio = math.exp(log_prob[t, b] - p["behaviour_log_prob"][t, b])
            rho, c = min(rho_bar, ratio), min(c_bar, ratio)
            reward, value = float(p["reward"][t, b]), float(p["value"][t, b])
            delta = rho * (reward + GAMMA * following_value - value)
            target = value + delta + GAMMA * c * (following_target - following_value)
            yield t, b, target, reward + GAMMA * following_target - value, rho
            following_value, following_target = value, target


def check(got: tuple[Tensor, dict[str, Tensor]], p: dict[str, Tensor], policy: Any) -> None:
    """Compare with a policy loss of each step, `policy(t, b, advantage, rho)`, and the rest."""
    loss, terms = got
    count = int(p["length"].sum())
    entropy = sum(float(p["entropy"][: int(n), b].sum()) for b, n in enumerate(p["length"])) / count
    policy_loss, value_loss = policy
    assert terms["policy_loss"].item() == pytest.approx(policy_loss / count)
    assert terms["value_loss"].item() == pytest.approx(value_loss / count)
    assert terms["entropy"].item() == pytest.approx(entropy)
    want = policy_loss / count + 0.5 * value_loss / count - 0.01 * entropy
    assert loss.item() == pytest.approx(want)


@given(st.integers(0, 1000), st.floats(0.5, 2), st.floats(0.5, 2))
def test_impala_is_the_papers_loss(seed: int, rho_bar: float, c_bar: float) -> None:
    p = batch(seed)
    policy_loss = value_loss = clipped = kl = 0.0
    for t, b, target, advantage, rho in loop(p, p["log_prob"], rho_bar, c_bar):
        policy_loss -= rho * advantage * float(p["log_prob"][t, b])
        value_loss += (float(p["value"][t, b]) - target) ** 2
        log_ratio = float(p["log_prob"][t, b] - p["behaviour_log_prob"][t, b])
        clipped += math.exp(log_ratio) > rho_bar
        kl += math.exp(log_ratio) - 1 - log_ratio
    got = impala.loss(**p, gamma=GAMMA, rho_bar=rho_bar, c_bar=c_bar)
    check(got, p, (policy_loss, value_loss))
    assert got[1]["rho_clip_fraction"].item() == pytest.approx(clipped / int(p["length"].sum()))
    assert got[1]["approx_kl"].item() == pytest.approx(kl / int(p["length"].sum()))


def surrogate(ratio: float, advantage: float, clip: float) -> float:
    return min(ratio * advantage, min(max(ratio, 1 - clip), 1 + clip) * advantage)


CLIPS = {"rho_bar": 1.5, "c_bar": 0.8}


@given(st.integers(0, 1000), st.floats(0.05, 0.5))
def test_appo_clips_around_the_behaviour_policy(seed: int, clip: float) -> None:
    p = batch(seed)
    policy_loss = value_loss = kl = 0.0
    for t, b, target, advantage, _ in loop(p, p["log_prob"], **CLIPS):
        ratio = math.exp(p["log_prob"][t, b] - p["behaviour_log_prob"][t, b])
        policy_loss -= surrogate(ratio, advantage, clip)
        kl += ratio - 1 - math.log(ratio)
        value_loss += (float(p["value"][t, b]) - target) ** 2
    got = appo.loss(**p, gamma=GAMMA, clip=clip, **CLIPS)
    check(got, p, (policy_loss, value_loss))
    for name in ("approx_kl", "behaviour_kl"):
        assert got[1][name].item() == pytest.approx(kl / int(p["length"].sum()))


@given(st.integers(0, 1000))
def test_appo_with_normalised_advantages(seed: int) -> None:
    p = batch(seed)
    steps = [(t, b, advantage) for t, b, _, advantage, _ in loop(p, p["log_prob"])]
    advantages = np.array([advantage for _, _, advantage in steps])
    normalised = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    policy_loss = 0.0
    for (t, b, _), advantage in zip(steps, normalised, strict=True):
        ratio = math.exp(p["log_prob"][t, b] - p["behaviour_log_prob"][t, b])
        policy_loss -= surrogate(ratio, float(advantage), 0.2) / len(steps)
    _, terms = appo.loss(**p, gamma=GAMMA, clip=0.2, normalize_advantage=True)
    assert terms["policy_loss"].item() == pytest.approx(policy_loss, abs=1e-7)


@given(st.integers(0, 1000), st.floats(0.05, 0.5), st.floats(0.5, 3))
def test_appo_with_a_target_network_is_impact(seed: int, clip: float, cap: float) -> None:
    p = batch(seed)
    target_log_prob = torch.from_numpy(np.random.default_rng(seed + 1).normal(size=(T, B)))
    policy_loss = value_loss = clipped = kl = 0.0
    for t, b, target, advantage, rho in loop(p, target_log_prob, **CLIPS):
        new, behaviour = float(p["log_prob"][t, b]), float(p["behaviour_log_prob"][t, b])
        truncated = min(math.exp(behaviour - float(target_log_prob[t, b])), cap)
        ratio = truncated * math.exp(new - behaviour)
        policy_loss -= surrogate(ratio, rho * advantage, clip)
        clipped += rho == CLIPS["rho_bar"]
        kl += math.exp(new - behaviour) - 1 - (new - behaviour)
        value_loss += (float(p["value"][t, b]) - target) ** 2
    options = {"clip": clip, "max_behaviour_ratio": cap, "target_log_prob": target_log_prob}
    got = appo.loss(**p, gamma=GAMMA, **CLIPS, **options)
    check(got, p, (policy_loss, value_loss))
    for name, want in {"rho_clip_fraction": clipped, "behaviour_kl": kl}.items():
        assert got[1][name].item() == pytest.approx(want / int(p["length"].sum()))


def test_on_policy_all_of_them_have_a2cs_gradient() -> None:
    p = batch(5)
    p["behaviour_log_prob"] = p["log_prob"].clone()
    columns = [p[name] for name in ("reward", "value", "final_value", "terminated", "length")]
    advantage, target = gae(*columns, gamma=GAMMA, lambda_=1.0), n_step(*columns, gamma=GAMMA)
    valid = torch.arange(T)[:, None] < p["length"]
    inputs = [p[name].requires_grad_() for name in ("log_prob", "entropy", "value")]
    losses = [
        a2c.loss(*inputs, advantage, target, valid=valid)[0],
        impala.loss(**p, gamma=GAMMA)[0],
        appo.loss(**p, gamma=GAMMA)[0],
        appo.loss(**p, gamma=GAMMA, target_log_prob=p["log_prob"].detach())[0],
        ppo.loss(
            *inputs,
            p["behaviour_log_prob"],
            advantage.detach(),
            target,
            valid=valid,
            entropy_coefficient=0.01,
        )[0],
    ]
    want, *others = [torch.autograd.grad(loss, inputs) for loss in losses]
    for grads in others:
        assert all(torch.allclose(a, b) for a, b in zip(want, grads, strict=True))


@pytest.mark.parametrize("name", ["impala", "appo", "impact"])
def test_gradients_agree_with_finite_differences_of_the_papers_constants(name: str) -> None:
    """Targets and weights are constants, so the check holds them: they are made from a copy."""
    p = batch(1)
    fixed = {n: x.clone() for n, x in p.items()}
    inputs = tuple(p[n].requires_grad_() for n in ("log_prob", "entropy", "value"))
    followed = fixed["behaviour_log_prob"] / 2 if name == "impact" else fixed["log_prob"]
    steps = list(loop(fixed, followed))

    def by_hand(log_prob: Tensor, entropy: Tensor, value: Tensor) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for t, b, target, advantage, rho in steps:
            behaviour = fixed["behaviour_log_prob"][t, b]
            if name == "impala":
                gain = rho * advantage * log_prob[t, b]
            elif name == "appo":
                ratio = (log_prob[t, b] - behaviour).exp()
                gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
            else:
                weighted = rho * advantage
                ratio = (behaviour - followed[t, b]).exp().clamp(max=2.0)
                ratio = ratio * (log_prob[t, b] - behaviour).exp()
                gain = torch.minimum(ratio * weighted, ratio.clamp(0.8, 1.2) * weighted)
            total = total - gain + 0.5 * (value[t, b] - target) ** 2 - 0.01 * entropy[t, b]
        return total / len(steps)

    assert torch.autograd.gradcheck(by_hand, inputs)
    function = impala.loss if name == "impala" else appo.loss
    extra = {"target_log_prob": followed} if name == "impact" else {}
    loss, _ = function(**p, gamma=GAMMA, **extra)
    want = torch.autograd.grad(by_hand(*inputs), inputs)
    for one, other in zip(torch.autograd.grad(loss, inputs), want, strict=True):
        assert torch.allclose(one, other)


@pytest.mark.parametrize("name", ["impala", "appo", "impact"])
@given(seed=st.integers(0, 100), rubbish=st.sampled_from([np.nan, np.inf]))
def test_padding_counts_nowhere(name: str, seed: int, rubbish: float) -> None:
    clean = batch(seed)
    dirty = {n: x.clone() for n, x in clean.items()}
    padding = torch.arange(T)[:, None] >= clean["length"]
    for column in ("log_prob", "entropy", "value", "behaviour_log_prob", "reward"):
        dirty[column][padding] = rubbish
    results = []
    for p in (clean, dirty):
        inputs = tuple(p[n].requires_grad_() for n in ("log_prob", "entropy", "value"))
        extra = {"target_log_prob": p["behaviour_log_prob"] - 0.1} if name == "impact" else {}
        function = impala.loss if name == "impala" else appo.loss
        loss, terms = function(**p, gamma=GAMMA, **extra)
        results.append([loss, *terms.values(), *torch.autograd.grad(loss, inputs)])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.parametrize("behaviour", [-200.0, 200.0])
def test_extreme_ratios_stay_finite(behaviour: float) -> None:
    p = {n: x.float() if x.is_floating_point() else x for n, x in batch(0).items()}
    p["behaviour_log_prob"] = torch.full((T, B), behaviour)
    p["log_prob"].requires_grad_()
    target = {"target_log_prob": torch.zeros(T, B)}
    for function, extra in ((impala.loss, {}), (appo.loss, {}), (appo.loss, target)):
        loss, _ = function(**p, gamma=GAMMA, **extra)  # type: ignore[operator]
        (grad,) = torch.autograd.grad(loss, p["log_prob"])
        assert torch.isfinite(loss)
        assert torch.isfinite(grad).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"entropy": torch.zeros(T)}, r"entropy: expected shape \(6, 3\), got \(6,\)"),
        ({"behaviour_log_prob": torch.zeros(T, 1)}, r"behaviour_log_prob: expected shape \(6, 3\)"),
        ({"reward": torch.zeros(T)}, r"reward: expected \[T, B\], not empty, got shape \(6,\)"),
        ({"reward": torch.zeros(2, B)}, r"log_prob: expected shape \(2, 3\), got \(6, 3\)"),
        ({"gamma": 2.0}, r"gamma: expected 0 to 1, got 2\.0"),
        ({"rho_bar": 0.0}, "rho_bar: expected a positive number"),
    ],
)
def test_nonsense_is_refused(change: dict[str, Any], message: str) -> None:
    for function in (impala.loss, appo.loss):
        with pytest.raises(ValueError, match=message):
            function(**{**batch(0), "gamma": GAMMA, **change})


def test_nonsense_of_one_is_refused() -> None:
    p = batch(0)
    with pytest.raises(ValueError, match=r"target_log_prob: expected shape \(6, 3\), got \(6,\)"):
        appo.loss(**p, gamma=GAMMA, target_log_prob=torch.zeros(T))
    with pytest.raises(ValueError, match="max_behaviour_ratio: expected a positive number, got 0"):
        appo.loss(**p, gamma=GAMMA, target_log_prob=p["value"], max_behaviour_ratio=0)
    column = torch.zeros(4)
    with pytest.raises(ValueError, match=r"advantage: expected shape \(4,\), got \(1,\)"):
        a2c.loss(column, column, column, torch.zeros(1), column)
