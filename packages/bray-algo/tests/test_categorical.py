"""The categorical distribution against its definitions in numpy, and at extremes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bray_algo.distributions import categorical
from bray_algo.validation import validating

A = 4


def softmax(row: np.ndarray) -> np.ndarray:
    weights = np.exp(row - row.max())
    return weights / weights.sum()


@given(st.integers(0, 1000))
def test_against_the_definitions(seed: int) -> None:
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
    pair = categorical.log_prob_and_entropy(logits, torch.tensor(2))
    assert pair == (categorical.log_prob(logits, torch.tensor(2)), categorical.entropy(logits))


def test_illegal_actions_have_no_chance_and_no_gradient() -> None:
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


def test_infinite_logits_are_safe() -> None:
    logits = torch.tensor([[0.0, -math.inf], [1e30, 0.0]])
    assert torch.isfinite(categorical.log_probs(logits)).all()
    assert torch.isfinite(categorical.entropy(logits)).all()


def test_samples_follow_the_probabilities() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0]).expand(20_000, 3)
    counts = torch.bincount(categorical.sample(logits, torch.Generator().manual_seed(0)))
    p = softmax(np.array([0.0, 1.0, 2.0]))
    deviation = 5 * np.sqrt(20_000 * p * (1 - p))  # binomial, five standard deviations
    assert (np.abs(counts.numpy() - 20_000 * p) < deviation).all()


def test_a_row_without_a_legal_action_is_refused() -> None:
    with pytest.raises(ValueError, match="one legal action or more in each row"):
        categorical.mask(torch.zeros(2, 2), torch.tensor([[True, True], [False, False]]))
    with pytest.raises(ValueError, match="legal: expected bool"):
        categorical.mask(torch.zeros(2, 2), torch.ones(2, 2))


def test_one_legal_action_is_certain() -> None:
    legal = torch.tensor([[False, True, False, False]])
    logits = categorical.mask(torch.tensor([[50.0, -50.0, 0.0, math.inf]]), legal)
    assert categorical.sample(logits).tolist() == [1]
    assert categorical.mode(logits).tolist() == [1]
    assert categorical.log_prob(logits, torch.tensor([1])).tolist() == [0.0]
    assert categorical.entropy(logits).tolist() == [0.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_masks_are_safe_in_every_precision(dtype: torch.dtype) -> None:
    legal = torch.tensor([[True, False, True]])
    logits = categorical.mask(torch.zeros(1, 3, dtype=dtype), legal)
    infinite = torch.tensor([[0.0, -math.inf, 0.0]], dtype=dtype)
    for distribution in (logits, infinite):
        entropy = categorical.entropy(distribution)
        assert entropy.dtype == torch.promote_types(dtype, torch.float32)
        assert entropy.item() == pytest.approx(math.log(2), rel=1e-2)
        assert categorical.kl(distribution, infinite).item() == 0


@given(st.integers(0, 1000))
def test_kl_is_not_negative_and_zero_to_itself(seed: int) -> None:
    p, q = torch.tensor(np.random.default_rng(seed).normal(size=(2, 3, A)) * 20)
    assert (categorical.kl(p, q) >= -1e-12).all()
    assert not categorical.kl(p, p).any()


def test_sampling_repeats_with_its_generator() -> None:
    logits = torch.randn(5, 7, A)
    drawn = [categorical.sample(logits, torch.Generator().manual_seed(3)) for _ in range(2)]
    assert drawn[0].shape == (5, 7)
    assert torch.equal(*drawn)


def test_one_action_for_each_row() -> None:
    with pytest.raises(ValueError, match=r"action: expected shape \(6,\), got \(3,\)"):
        categorical.log_prob(torch.zeros(6, A), torch.zeros(3, dtype=torch.int64))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("far", [-2e9, -1e30, "least", "half"])
def test_a_legal_logit_beats_illegal_ones_wherever_it_lies(
    dtype: torch.dtype, far: float | str
) -> None:
    least = torch.finfo(dtype).min
    number = {"least": least, "half": least / 2}[far] if isinstance(far, str) else max(far, least)
    raw = torch.tensor([[0.0, number, 5.0, number]] * 2, dtype=dtype, requires_grad=True)
    legal = torch.tensor([[False, True, False, True], [False, True, False, False]])
    logits = categorical.mask(raw, legal)
    assert logits.isfinite().all(), "JSON and exports hold no infinity"
    p = categorical.log_probs(logits).exp()
    np.testing.assert_allclose(p.tolist(), [[0, 0.5, 0, 0.5], [0, 1, 0, 0]], atol=1e-6)
    assert categorical.mode(logits)[1] == 1
    drawn = torch.stack([categorical.sample(logits) for _ in range(20)])
    assert legal.gather(1, drawn.T).all()
    entropy = categorical.entropy(logits)
    np.testing.assert_allclose(entropy.tolist(), [math.log(2), 0], atol=1e-6)
    (entropy.sum() + categorical.log_prob(logits, torch.tensor([1, 1])).sum()).backward()
    assert raw.grad is not None
    assert raw.grad.isfinite().all()
    assert not raw.grad[~legal].any()


def test_far_logits_keep_their_distances() -> None:
    """The floor is of what is far below the others, not of what is far below 0."""
    rows = torch.tensor([[-4e9, -2e9, -3e9], [-1e30, 0.0, -math.inf]])
    assert categorical.log_probs(rows).exp().tolist() == [[0, 1, 0], [0, 1, 0]]
    with validating(False):
        assert categorical.log_probs(torch.full((1, 4), -math.inf)).exp().tolist() == [[0.25] * 4]
        none = categorical.mask(torch.randn(1, 4), torch.zeros(1, 4, dtype=torch.bool))
        assert categorical.log_probs(none).exp().tolist() == [[0.25] * 4]
        assert categorical.entropy(none).item() == pytest.approx(math.log(4))
