from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bray_algo import behaviour_cloning_loss
from bray_algo.distributions import categorical, gaussian
from bray_algo.losses import cloning

N, A, D = 6, 4, 3


@given(st.integers(0, 1000))
def test_likelihood_is_that_of_any_distribution(seed: int) -> None:
    rng = np.random.default_rng(seed)
    mean, action, weight = rng.normal(size=(N, D)), rng.normal(size=(N, D)), rng.random(N)
    log_std = rng.normal(size=D)
    log_prob = gaussian.log_prob(*map(torch.tensor, (mean, log_std, action)))
    loss, terms = cloning.likelihood_loss(log_prob, weight=torch.tensor(weight))
    want = []
    for i in range(N):
        z = (action[i] - mean[i]) / np.exp(log_std)
        want.append(sum(-z * z / 2 - log_std - math.log(2 * math.pi) / 2))
    assert loss.item() == pytest.approx(-np.mean(weight * want))
    assert terms["log_prob"].item() == pytest.approx(np.mean(want))


def test_likelihood_of_one_categorical_action_is_the_plain_loss() -> None:
    logits, action = torch.randn(N, A), torch.randint(A, (N,))
    loss, _ = cloning.likelihood_loss(categorical.log_prob(logits, action))
    assert torch.equal(loss, behaviour_cloning_loss(logits, action)[0])


@given(st.integers(0, 1000))
def test_demonstrations_count_where_they_gained(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, advantage = rng.normal(size=(2, N))
    valid = rng.random(N) < 0.7
    rows[~valid] = np.nan
    log_prob = torch.from_numpy(rows).requires_grad_()
    loss, terms = cloning.likelihood_loss(
        log_prob,
        weight=cloning.advantage_filter(torch.from_numpy(advantage)),
        valid=torch.from_numpy(valid),
    )
    gained = valid & (advantage > 0)
    count = max(valid.sum(), 1)
    assert loss.item() == pytest.approx(math.fsum(-rows[gained]) / count)
    assert terms["weight"].item() == pytest.approx(gained.sum() / count)
    (grad,) = torch.autograd.grad(loss, log_prob)
    assert grad.tolist() == pytest.approx(list(-1.0 * gained / count))


@given(st.integers(0, 1000), st.sampled_from([None, 0.5]))
def test_regression_row_by_row(seed: int, huber: float | None) -> None:
    rng = np.random.default_rng(seed)
    action, shown, weight = rng.normal(size=(N, D)), rng.normal(size=(N, D)), rng.random(N)
    loss, terms = cloning.regression_loss(
        *map(torch.tensor, (action, shown)), weight=torch.tensor(weight), huber=huber
    )
    want = 0.0
    for i in range(N):
        for error in np.abs(action[i] - shown[i]):
            small = huber is None or error <= huber
            want += weight[i] / N * (error**2 if small else 2 * huber * (error - huber / 2))  # type: ignore[operator]
    assert loss.item() == pytest.approx(want)
    assert terms["absolute_error"].item() == pytest.approx(np.abs(action - shown).mean())


@given(st.integers(0, 1000), st.floats(0, 0.9))
def test_smoothed_labels_row_by_row(seed: int, smoothing: float) -> None:
    rng = np.random.default_rng(seed)
    legal = rng.random((N, A)) < 0.6
    action = rng.integers(0, A, N)
    legal[np.arange(N), action] = True
    logits = torch.tensor(np.where(legal, rng.normal(size=(N, A)), -np.inf), requires_grad=True)
    loss, _ = cloning.smoothed_loss(
        categorical.log_probs(logits),
        torch.tensor(action),
        torch.tensor(legal),
        smoothing=smoothing,
    )
    want = 0.0
    for i in range(N):
        weights = np.exp(logits[i].detach().numpy())
        log_p = np.log(weights[legal[i]] / weights.sum())
        mine = int(legal[i][: action[i]].sum())
        want -= ((1 - smoothing) * log_p[mine] + smoothing * log_p.mean()) / N
    loss.backward()
    assert loss.item() == pytest.approx(want)
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()


def test_advantage_weights() -> None:
    advantage = torch.tensor([-2.0, 0.0, 1.0, 1e30, -1e30, math.inf], requires_grad=True)
    got = cloning.advantage_weight(advantage, temperature=2.0, maximum=20.0)
    assert got.tolist() == pytest.approx([math.exp(-1), 1.0, math.exp(0.5), 20.0, 0.0, 20.0])
    assert not got.requires_grad


def test_gradients_agree_with_finite_differences() -> None:
    rng = np.random.default_rng(0)
    action, shown, logits = (
        torch.tensor(rng.normal(size=(N, D)), requires_grad=True) for _ in range(3)
    )
    chosen, legal = torch.tensor(rng.integers(0, D, N)), torch.ones(N, D, dtype=torch.bool)
    assert torch.autograd.gradcheck(lambda x: cloning.regression_loss(x, shown)[0], (action,))
    assert torch.autograd.gradcheck(
        lambda x: cloning.regression_loss(x, shown, huber=0.5)[0], (action,)
    )
    assert torch.autograd.gradcheck(
        lambda x: cloning.smoothed_loss(categorical.log_probs(x), chosen, legal)[0], (logits,)
    )
    cloning.regression_loss(action, shown)[0].backward()
    assert shown.grad is None


def test_nonsense_is_refused() -> None:
    rows, legal = torch.zeros(N, A), torch.ones(N, A, dtype=torch.bool)
    with pytest.raises(
        ValueError, match=r"expected columns of one sample or more, got shape \(0, 4\)"
    ):
        cloning.likelihood_loss(rows[:0])
    with pytest.raises(ValueError, match=r"weight: expected shape \(6,\), got \(6, 1\)"):
        cloning.likelihood_loss(rows[:, 0], weight=rows[:, :1])
    with pytest.raises(ValueError, match=r"demonstrated: expected shape \(6, 4\), got \(6, 1\)"):
        cloning.regression_loss(rows, rows[:, :1])
    with pytest.raises(ValueError, match="smoothing: expected 0 to below 1, got 1"):
        cloning.smoothed_loss(rows, rows[:, 0].long(), legal, smoothing=1)
    with pytest.raises(ValueError, match="expected each demonstrated action to be legal"):
        cloning.smoothed_loss(rows, rows[:, 0].long(), ~legal)
    with pytest.raises(ValueError, match="temperature: expected a positive number, got 0"):
        cloning.advantage_weight(rows[:, 0], temperature=0)
