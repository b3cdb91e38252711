"""MAPPO against the paper's sums over states and agents."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bray_algo.losses import mappo, ppo

N, M = 5, 3


def batch(seed: int, *, central: bool) -> dict[str, Tensor]:
    rng = np.random.default_rng(seed)
    agents = ("log_prob", "entropy", "old_log_prob")
    states = ("value", "advantage", "target", "old_value")
    shape = (N,) if central else (N, M)
    return {
        **{name: torch.from_numpy(rng.normal(size=(N, M))) for name in agents},
        **{name: torch.from_numpy(rng.normal(size=shape)) for name in states},
    }


@pytest.mark.parametrize("central", [True, False])
@given(seed=st.integers(0, 1000), chance=st.sampled_from([0.3, 1.0]))
def test_it_is_the_papers_loss(central: bool, seed: int, chance: float) -> None:
    b = batch(seed, central=central)
    alive = torch.from_numpy(np.random.default_rng(seed).random((N, M)) < chance)
    alive[0, 0] = True
    policy, entropy, errors = [], [], {}
    for n in range(N):
        for m in range(M):
            if not alive[n, m]:
                continue
            at = (n,) if central else (n, m)
            ratio = math.exp(b["log_prob"][n, m] - b["old_log_prob"][n, m])
            advantage = float(b["advantage"][at])
            policy.append(min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage))
            entropy.append(float(b["entropy"][n, m]))
            value, old, target = (float(b[name][at]) for name in ("value", "old_value", "target"))
            held = old + min(max(value - old, -0.1), 0.1)
            errors[at] = max((value - target) ** 2, (held - target) ** 2)
    loss, terms = mappo.loss(**b, alive=alive, value_clip=0.1)
    value_loss = np.mean(list(errors.values()))
    want = -np.mean(policy) + 0.5 * value_loss - 0.01 * np.mean(entropy)
    assert loss.item() == pytest.approx(want)
    assert terms["value_loss"].item() == pytest.approx(value_loss)


def test_one_agent_is_ppo() -> None:
    b = batch(0, central=False)
    one = {name: column[:, :1] for name, column in b.items()}
    got, _ = mappo.loss(**one, value_clip=0.1)
    want, _ = ppo.loss(
        **{name: column[:, 0] for name, column in one.items()},
        value_clip=0.1,
        entropy_coefficient=0.01,
    )
    assert torch.allclose(got, want)


def test_gradients_agree_with_finite_differences() -> None:
    b = batch(1, central=True)
    inputs = tuple(b.pop(name).requires_grad_() for name in ("log_prob", "entropy", "value"))
    assert torch.autograd.gradcheck(lambda *x: mappo.loss(*x, **b, value_clip=0.1)[0], inputs)


def test_an_agent_that_is_gone_may_hold_anything() -> None:
    b = batch(2, central=True)
    alive = torch.ones(N, M, dtype=torch.bool)
    alive[2, 1] = alive[3] = False
    want, _ = mappo.loss(**b, alive=alive, value_clip=0.1)
    for name in ("log_prob", "entropy", "old_log_prob"):
        b[name][~alive] = torch.nan
    b["value"][3] = b["target"][3] = b["advantage"][3] = torch.nan
    got, _ = mappo.loss(**b, alive=alive, value_clip=0.1)
    assert torch.equal(got, want)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"log_prob": torch.zeros(N)}, r"log_prob: expected \[N, M\], not empty, got shape \(5,\)"),
        ({"value": torch.zeros(M)}, r"value: expected shape \(5,\), got \(3,\)"),
        ({"value": torch.zeros(N, 1)}, r"value: expected shape \(5, 3\), got \(5, 1\)"),
        ({"advantage": torch.zeros(M)}, r"advantage: expected shape \(5,\), got \(3,\)"),
        ({"target": torch.zeros(N, M)}, r"target: expected shape \(5,\), got \(5, 3\)"),
        (
            {"alive": torch.ones(N, dtype=torch.bool)},
            r"alive: expected bool \(5, 3\), got torch.bool \(5,\)",
        ),
    ],
)
def test_nonsense_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mappo.loss(**{**batch(0, central=True), "value_clip": 0.1, **change})
