from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bray_algo.returns.value_rescaling import rescale, unrescale

reals = st.floats(-1e6, 1e6)


@given(reals, st.sampled_from([0.0, 1e-3, 1e-2]))
def test_h_is_the_papers(z: float, epsilon: float) -> None:
    want = math.copysign(math.sqrt(abs(z) + 1) - 1, z) + epsilon * z
    got = rescale(torch.tensor(z, dtype=torch.float64), epsilon).item()
    assert got == pytest.approx(want, rel=1e-9, abs=1e-9)


@given(reals)
def test_the_inverse_is_the_papers(x: float) -> None:
    x, epsilon = x / 1000, 1e-3  # proposition A.2 (iii); it cancels, hence float64 and 1e-6
    root = math.sqrt(1 + 4 * epsilon * (abs(x) + 1 + epsilon)) - 1
    want = math.copysign((root / (2 * epsilon)) ** 2 - 1, x)
    got = unrescale(torch.tensor(x, dtype=torch.float64)).item()
    assert got == pytest.approx(want, rel=1e-6, abs=1e-6)


@given(reals, st.sampled_from([0.0, 1e-3, 1e-2]))
def test_there_and_back_in_float32(z: float, epsilon: float) -> None:
    there = rescale(torch.tensor(z, dtype=torch.float32), epsilon)
    assert unrescale(there, epsilon).item() == pytest.approx(z, rel=1e-5, abs=1e-37)


@given(st.lists(reals, min_size=2, unique=True))
def test_h_grows(values: list[float]) -> None:
    z = torch.tensor(sorted(values), dtype=torch.float64)
    assert (rescale(z).diff() >= 0).all()


def test_gradients_are_finite_everywhere() -> None:
    z = torch.tensor([-2.0, -1e-3, 1e-3, 5.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(rescale, (z,))
    assert torch.autograd.gradcheck(unrescale, (z,))
    zero = torch.zeros(1, requires_grad=True)
    (gradient,) = torch.autograd.grad(rescale(zero), zero)
    assert gradient.item() == pytest.approx(0.501)


@pytest.mark.parametrize("epsilon", [-1.0, math.nan, math.inf])
def test_nonsense_is_refused(epsilon: float) -> None:
    for function in (rescale, unrescale):
        with pytest.raises(ValueError, match=f"epsilon: expected 0 or more, got {epsilon}"):
            function(torch.zeros(1), epsilon)
