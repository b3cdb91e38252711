"""The product of categoricals against every joint action written out, and its masks."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bray_algo.distributions import multi_categorical
from bray_algo.validation import validating

SIZES = (2, 3, 4)


def joint(parts: list[np.ndarray]) -> np.ndarray:
    """The probability of every joint action."""
    each = [np.exp(part - part.max()) / np.exp(part - part.max()).sum() for part in parts]
    return np.array([math.prod(row) for row in itertools.product(*each)])


@given(st.integers(0, 1000))
def test_against_the_joint_distribution(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = [rng.normal(size=n) * 3 for n in SIZES]
    y = [rng.normal(size=n) * 3 for n in SIZES]
    p, q = joint(x), joint(y)
    logits, others = [torch.tensor(part) for part in x], [torch.tensor(part) for part in y]
    action = torch.tensor(list(itertools.product(*map(range, SIZES))))
    rows = [part.expand(len(action), -1) for part in logits]
    log_prob = multi_categorical.log_prob(rows, action).numpy()
    assert np.allclose(log_prob, np.log(p))
    assert multi_categorical.entropy(logits).item() == pytest.approx(-(p * np.log(p)).sum())
    kl = multi_categorical.kl(logits, others).item()
    assert kl == pytest.approx((p * np.log(p / q)).sum(), abs=1e-9)
    assert kl >= -1e-12
    assert torch.equal(multi_categorical.mode(logits), action[p.argmax()])


def test_each_part_has_its_mask() -> None:
    legal = [torch.tensor([[True, False]]), torch.tensor([[False, True, False]])]
    raw = [torch.zeros(1, 2, requires_grad=True), torch.tensor([[math.inf, 0.0, -math.inf]])]
    logits = multi_categorical.mask(raw, legal)
    assert multi_categorical.sample(logits).tolist() == [[0, 1]]
    assert multi_categorical.mode(logits).tolist() == [[0, 1]]
    assert multi_categorical.log_prob(logits, torch.tensor([[0, 1]])).tolist() == [0.0]
    assert multi_categorical.entropy(logits).tolist() == [0.0]
    with pytest.raises(
        ValueError, match=r"legal: expected shapes \[\(1, 2\), \(1, 3\)\], got \[\("
    ):
        multi_categorical.mask(raw, legal[:1])
    with pytest.raises(ValueError, match="one legal action or more in each row"):
        multi_categorical.mask(raw, [legal[0] & False, legal[1]])


def test_parts_that_mean_nothing_are_left_out() -> None:
    logits = [torch.randn(5, n, requires_grad=True) for n in SIZES]
    action = multi_categorical.sample([part.detach() for part in logits])
    active = torch.tensor([True, False, True]).expand(5, 3)
    less = [logits[0], logits[2]]
    log_prob = multi_categorical.log_prob(logits, action, active)
    assert torch.allclose(log_prob, multi_categorical.log_prob(less, action[:, [0, 2]]))
    entropy = multi_categorical.entropy(logits, active)
    assert torch.allclose(entropy, multi_categorical.entropy(less))
    others = [part.detach() + 1 for part in logits]
    assert torch.equal(
        multi_categorical.kl(logits, others, active & False), torch.zeros(5, dtype=torch.float32)
    )
    (log_prob.sum() + entropy.sum()).backward()
    assert logits[1].grad is not None
    assert not logits[1].grad.any()


def test_samples_follow_their_parts() -> None:
    logits = [torch.tensor([0.0, 2.0]).expand(20_000, 2), torch.zeros(20_000, 3)]
    drawn = multi_categorical.sample(logits, torch.Generator().manual_seed(0))
    p = joint([np.array([0.0, 2.0]), np.zeros(3)])
    counts = torch.bincount(drawn[:, 0] * 3 + drawn[:, 1], minlength=6).numpy()
    assert (np.abs(counts - 20_000 * p) < 5 * np.sqrt(20_000 * p * (1 - p))).all()


def test_one_output_is_cut_into_parts() -> None:
    parts = multi_categorical.split(torch.arange(10.0).expand(2, 10), [3, 7])
    assert [part.shape for part in parts] == [(2, 3), (2, 7)]
    assert parts[1][0, 0] == 3
    with pytest.raises(ValueError, match="positive numbers that add up to 10, got"):
        multi_categorical.split(torch.zeros(10), [3, 6])


def test_shapes_are_checked() -> None:
    logits = [torch.zeros(2, 3), torch.zeros(2, 4)]
    with pytest.raises(ValueError, match=r"action: expected shape \(2, 2\), got \(2, 3\)"):
        multi_categorical.log_prob(logits, torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"active: expected bool \(2, 2\), got torch.float32"):
        multi_categorical.entropy(logits, torch.ones(2, 2))
    with pytest.raises(ValueError, match=r"logits_q: expected shapes"):
        multi_categorical.kl(logits, logits[:1])
    with pytest.raises(ValueError, match="logits: expected one part or more"):
        multi_categorical.log_prob([], torch.zeros(2, 0))


def test_without_validation_a_row_of_no_legal_action_is_uniform() -> None:
    legal = [torch.tensor([[False, False]]), torch.tensor([[True, False, False]])]
    raw = [torch.tensor([[3.0, -1.0]]), torch.zeros(1, 3)]
    with validating(False):
        logits = multi_categorical.mask(raw, legal)
    entropy = multi_categorical.entropy(logits)
    assert entropy.item() == pytest.approx(math.log(2))
