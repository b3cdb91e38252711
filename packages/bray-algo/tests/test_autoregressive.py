"""The auto-regressive head against its joint distribution written out."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from bray_algo.distributions import multi_categorical
from bray_algo.networks.autoregressive import AutoRegressiveHead

SIZES = (2, 3, 4)
ACTIONS = torch.tensor(list(itertools.product(*map(range, SIZES))))


def head_of(seed: int) -> AutoRegressiveHead:
    torch.manual_seed(seed)
    head = AutoRegressiveHead(5, SIZES, hidden=8).double()
    for parameter in head.parameters():  # far from uniform
        nn.init.normal_(parameter)
    return head


def by_hand(head: AutoRegressiveHead, features: torch.Tensor) -> np.ndarray:
    """log p of every joint action, part after part."""
    total = []
    for action in ACTIONS.tolist():
        state, log_p = features, 0.0
        for k, part in enumerate(head.parts):
            row = part(state).detach().numpy()
            log_p += row[action[k]] - np.log(np.exp(row).sum())
            if k + 1 < len(SIZES):
                state = state + head.choices[k].weight[action[k]]
        total.append(log_p)
    return np.array(total)


def test_against_the_joint_distribution() -> None:
    head, other = head_of(0), head_of(1)
    features = torch.randn(5, dtype=torch.float64)
    rows = features.expand(len(ACTIONS), 5)
    log_p, log_q = by_hand(head, features), by_hand(other, features)
    p = np.exp(log_p)
    assert p.sum() == pytest.approx(1)
    with torch.no_grad():
        assert np.allclose(head.log_prob(rows, ACTIONS).numpy(), log_p)
        along, others = head.logits(rows, ACTIONS), other.logits(rows, ACTIONS)
        # Along drawn paths entropy and divergence are right on average.
        entropy = (p * multi_categorical.entropy(along).numpy()).sum()
        kl = (p * multi_categorical.kl(along, others).numpy()).sum()
    assert entropy == pytest.approx(-(p * log_p).sum())
    assert kl == pytest.approx((p * (log_p - log_q)).sum())


def test_samples_follow_the_joint_distribution() -> None:
    head, features = head_of(2), torch.randn(5, dtype=torch.float64)
    p = np.exp(by_hand(head, features))
    with torch.no_grad():
        rows = features.expand(20_000, 5)
        drawn, logits = head.sample(rows, generator=torch.Generator().manual_seed(0))
        log_prob = multi_categorical.log_prob(logits, drawn)
        assert torch.allclose(log_prob, head.log_prob(rows, drawn))
    place = (drawn[:, 0] * 3 + drawn[:, 1]) * 4 + drawn[:, 2]
    counts = torch.bincount(place, minlength=24).numpy()
    assert (np.abs(counts - 20_000 * p) <= 5 * np.sqrt(20_000 * p * (1 - p)) + 1).all()


def test_the_greedy_action_takes_each_part_given_those_before() -> None:
    head, features = head_of(3), torch.randn(7, 5, dtype=torch.float64)
    with torch.no_grad():
        action = head(features)
        logits = head.logits(features, action)
    assert torch.equal(multi_categorical.mode(logits), action)


def test_masks_may_depend_on_the_first_part() -> None:
    head, features = AutoRegressiveHead(5, SIZES), torch.randn(50, 5)  # nearly uniform
    targets = torch.zeros(50, 2, 3, dtype=torch.bool)
    targets[:, 0, 2] = targets[:, 1, :2] = True  # the first choice wants the last target
    legal = [None, targets, torch.tensor([True, False, False, True]).expand(50, 4)]
    action, logits = head.sample(features, legal)
    assert set(action[:, 0].tolist()) == {0, 1}
    assert torch.equal(action[:, 1] == 2, action[:, 0] == 0)
    assert set(action[:, 2].tolist()) <= {0, 3}
    again = head.logits(features, action, legal)
    assert all(torch.equal(a, b) for a, b in zip(logits, again, strict=True))
    multi_categorical.entropy(again).sum().backward()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in head.parameters())


def test_bad_input_is_refused() -> None:
    head = AutoRegressiveHead(5, SIZES)
    features = torch.zeros(2, 5)
    with pytest.raises(ValueError, match=r"num_actions: expected positive numbers, got \[\]"):
        AutoRegressiveHead(5, [])
    with pytest.raises(ValueError, match=r"action: expected shape \(2, 3\), got \(2, 2\)"):
        head.logits(features, torch.zeros(2, 2))
    with pytest.raises(ValueError, match="legal: expected 3 masks, got 1"):
        head(features, [None])
    with pytest.raises(ValueError, match=r"legal\[0\]: expected \[B, A_1\], got shape"):
        head(features, [torch.ones(2, 2, 2, dtype=torch.bool), None, None])
    with pytest.raises(ValueError, match="one legal action or more"):
        head(features, [torch.zeros(2, 2, dtype=torch.bool), None, None])
