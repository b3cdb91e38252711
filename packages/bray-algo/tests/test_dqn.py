from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bray_algo.losses import dqn

N, A = 6, 4


def batch(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "next_q": torch.tensor(rng.normal(size=(N, A))),
        "reward": torch.tensor(rng.normal(size=N)),
        "discount": torch.tensor(rng.choice([0.0, 0.9, 0.81], N)),
        "next_online_q": torch.tensor(rng.normal(size=(N, A))),
        "next_legal": torch.tensor(rng.random((N, A)) < 0.5) | (torch.arange(A) == 1),
    }


@given(st.integers(0, 1000), st.booleans(), st.booleans())
def test_targets_are_the_papers(seed: int, double: bool, masked: bool) -> None:
    b = batch(seed)
    b["next_online_q"] = b["next_online_q"] if double else None
    b["next_legal"] = b["next_legal"] if masked else None
    got = dqn.target(**b)
    for i in range(N):
        legal = [a for a in range(A) if not masked or b["next_legal"][i, a]]
        chooser = b["next_online_q"] if double else b["next_q"]
        best = max(legal, key=lambda a: float(chooser[i, a]))
        want = b["reward"][i] + b["discount"][i] * b["next_q"][i, best]
        assert got[i].item() == pytest.approx(want.item())


def test_a_terminal_row_may_hold_anything() -> None:
    b = batch(0)
    b["discount"][0] = 0
    b["next_legal"][0], b["next_q"][0], b["next_online_q"][0] = False, math.nan, math.inf
    assert dqn.target(**b)[0] == b["reward"][0]


def test_one_legal_action_is_taken_however_bad() -> None:
    q = torch.tensor([[5.0, -1e30, 3.0]])
    legal = torch.tensor([[False, True, False]])
    assert dqn.greedy(q, legal).tolist() == [1]
    got = dqn.target(q, torch.zeros(1), torch.full((1,), 0.5), next_legal=legal)
    assert got.item() == pytest.approx(-5e29)


@given(st.integers(0, 1000), st.sampled_from([0.5, 1.0, None]))
def test_the_loss_row_by_row(seed: int, huber: float | None) -> None:
    rng = np.random.default_rng(seed)
    q, target, weight = rng.normal(size=(N, A)), 3 * rng.normal(size=N), rng.random(N)
    action = rng.integers(0, A, N)
    tensors = (torch.tensor(q), torch.tensor(action), torch.tensor(target))
    loss, terms = dqn.loss(*tensors, weight=torch.tensor(weight), huber=huber)
    want = 0.0
    for i in range(N):
        error = abs(target[i] - q[i, action[i]])
        quadratic = huber is None or error <= huber
        want += weight[i] / N * (error**2 / 2 if quadratic else huber * (error - huber / 2))  # type: ignore[operator]
    errors = [target[i] - q[i, action[i]] for i in range(N)]
    assert loss.item() == pytest.approx(want)
    assert dqn.td_error(*tensors).tolist() == pytest.approx(errors)
    assert terms["td_error"].item() == pytest.approx(np.abs(errors).mean())
    assert terms["q"].item() == pytest.approx(np.mean([q[i, action[i]] for i in range(N)]))


@pytest.mark.parametrize("huber", [0.5, None])
def test_gradients_agree_with_finite_differences(huber: float | None) -> None:
    rng = np.random.default_rng(1)
    q = torch.tensor(rng.normal(size=(N, A)), requires_grad=True)
    target = torch.tensor(rng.normal(size=N), requires_grad=True)
    action, weight = torch.tensor(rng.integers(0, A, N)), torch.tensor(rng.random(N))
    assert torch.autograd.gradcheck(
        lambda q: dqn.loss(q, action, target, weight=weight, huber=huber)[0], (q,)
    )
    dqn.loss(q, action, target)[0].backward()
    assert target.grad is None


def test_great_errors_pull_no_more_than_delta() -> None:
    q = torch.tensor([[1e30, 0.0], [-1e30, 0.0]], requires_grad=True)
    loss, _ = dqn.loss(q, torch.zeros(2, dtype=torch.int64), torch.zeros(2))
    loss.backward()
    assert torch.isfinite(loss)
    assert q.grad.tolist() == [[0.5, 0.0], [-0.5, 0.0]]  # type: ignore[union-attr]


def test_duelling_streams() -> None:
    rng = np.random.default_rng(0)
    value, advantage = rng.normal(size=(N, 3)), rng.normal(size=(N, A, 3))
    got = dqn.duelling(torch.tensor(value), torch.tensor(advantage)).numpy()
    for i in range(N):
        for a in range(A):
            want = value[i] + advantage[i, a] - sum(advantage[i]) / A
            assert got[i, a] == pytest.approx(want)
    assert torch.allclose(dqn.duelling(torch.ones(2), torch.rand(2, 5)).mean(1), torch.ones(2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"next_q": torch.zeros(N)}, r"next_q: expected \[N, A\], not empty, got shape \(6,\)"),
        ({"next_q": torch.zeros(0, A)}, r"next_q: expected .* got shape \(0, 4\)"),
        ({"reward": torch.zeros(N, 1)}, r"reward: expected shape \(6,\), got \(6, 1\)"),
        ({"discount": torch.zeros(1)}, r"discount: expected shape \(6,\), got \(1,\)"),
        ({"next_online_q": torch.zeros(N, 2)}, r"next_online_q: expected shape \(6, 4\)"),
        ({"next_legal": torch.ones(N, A)}, r"next_legal: expected bool \(6, 4\), got torch.fl"),
        (
            {
                "next_legal": torch.zeros(N, A, dtype=torch.bool),
                "discount": torch.full((N,), 0.9),
            },
            "next_legal: got a row of no legal action whose discount is not 0",
        ),
    ],
)
def test_nonsense_targets_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dqn.target(**{**batch(0), **change})


def test_epsilon_greedy_takes_the_best_and_sometimes_any() -> None:
    q = torch.tensor([[[1.0, 3.0, 2.0, 0.0]], [[5.0, 3.0, 2.0, 9.0]]])
    probability = dqn.epsilon_greedy(q, 0.2).softmax(-1)
    assert probability[0, 0].tolist() == pytest.approx([0.05, 0.85, 0.05, 0.05])
    assert probability[1, 0].tolist() == pytest.approx([0.05, 0.05, 0.05, 0.85])
    never = dqn.epsilon_greedy(q, torch.zeros(())).softmax(-1)
    assert never[0, 0, 1].item() == pytest.approx(1.0)
    assert never[0, 0, [0, 2, 3]].max().item() < 1e-8


def test_nonsense_is_refused() -> None:
    q, target = torch.zeros(N, A), torch.zeros(N)
    action = torch.zeros(N, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"action: expected shape \(6,\), got \(6, 1\)"):
        dqn.loss(q, action[:, None], target)
    with pytest.raises(ValueError, match=r"target: expected shape \(6,\), got \(6, 1\)"):
        dqn.loss(q, action, target[:, None])
    with pytest.raises(ValueError, match=r"weight: expected shape \(6,\), got \(1,\)"):
        dqn.loss(q, action, target, weight=torch.ones(1))
    with pytest.raises(ValueError, match=r"huber: expected a positive number, got 0.0"):
        dqn.loss(q, action, target, huber=0.0)
    with pytest.raises(ValueError, match=r"value: expected shape \(6,\), got \(6, 1\)"):
        dqn.duelling(q[:, :1], q)
    with pytest.raises(ValueError, match=r"advantage: expected \[N, A, …\], got shape \(6,\)"):
        dqn.duelling(target, target)
    with pytest.raises(ValueError, match=r"q: expected \[N, A, …\], not empty, got shape \(6,\)"):
        dqn.chosen(target, action)
    with pytest.raises(ValueError, match=r"legal: expected shape \(6, 4\), got \(4,\)"):
        dqn.greedy(q, torch.ones(A, dtype=torch.bool))
