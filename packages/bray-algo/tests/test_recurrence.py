"""The blocked recurrence against the plain one, at lengths around its blocks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bray_algo.returns.recurrence import discounted_sum


def plain(delta: np.ndarray, carry: np.ndarray) -> np.ndarray:
    total = np.zeros_like(delta)
    for b in range(delta.shape[1]):
        following = 0.0
        for t in reversed(range(len(delta))):
            following = delta[t, b] + carry[t, b] * following
            total[t, b] = following
    return total


@given(st.integers(1, 150), st.integers(1, 4), st.integers(0, 1000))
def test_it_is_the_plain_loop_at_any_length(num_steps: int, batch: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    delta, carry = rng.normal(size=(2, num_steps, batch))
    carry = np.where(rng.random(carry.shape) < 0.1, 0.0, np.tanh(carry))
    got = discounted_sum(torch.from_numpy(delta), torch.from_numpy(carry))
    np.testing.assert_allclose(got.numpy(), plain(delta, carry), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("factor", [1.0, 0.9999, 0.99, 0.0])
@pytest.mark.parametrize("num_steps", [5, 128, 1000])
def test_float32_is_as_exact_as_the_plain_loop_in_float32(num_steps: int, factor: float) -> None:
    delta = np.random.default_rng(0).normal(size=(num_steps, 3)).astype(np.float32)
    carry = np.full_like(delta, factor)
    want = plain(delta.astype(np.float64), carry.astype(np.float64))
    single = plain(delta, carry)
    got = discounted_sum(torch.from_numpy(delta), torch.from_numpy(carry)).numpy()
    scale = np.abs(want).max()
    assert np.abs(got - want).max() <= 2 * np.abs(single - want).max() + 1e-6 * scale


@pytest.mark.parametrize("num_steps", [9, 33])
def test_gradients_agree_with_finite_differences(num_steps: int) -> None:
    torch.manual_seed(0)
    delta, carry = torch.randn(2, num_steps, 2, dtype=torch.float64).unbind()
    inputs = (delta.requires_grad_(), carry.tanh().detach().requires_grad_())
    assert torch.autograd.gradcheck(discounted_sum, inputs)


def test_carries_above_one_grow_and_columns_stay_apart() -> None:
    delta, carry = torch.ones(40, 2), torch.tensor([[2.0, 0.5]]).expand(40, 2)
    got = discounted_sum(delta, carry)
    assert got[0, 0] == 2.0**40 - 1
    assert got[0, 1] == pytest.approx(2.0)


def test_other_strides_are_read_as_they_are() -> None:
    delta, carry = torch.randn(2, 5, 50).unbind()
    want = discounted_sum(delta.T.contiguous(), carry.T.contiguous())
    assert torch.equal(discounted_sum(delta.T, carry.T), want)
