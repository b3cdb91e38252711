from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bray_algo.returns import targets


@given(st.floats(0, 1), st.lists(st.tuples(st.booleans(), st.integers(1, 9)), min_size=1))
def test_discounts(gamma: float, rows: list[tuple[bool, int]]) -> None:
    terminated = torch.tensor([row[0] for row in rows])
    steps = torch.tensor([row[1] for row in rows])
    got = targets.discount(gamma, terminated, steps)
    want = [0.0 if over else gamma**n for over, n in rows]
    assert got.tolist() == pytest.approx(want, rel=1e-5, abs=1e-30)
    one_step = targets.discount(gamma, terminated)
    assert one_step.tolist() == pytest.approx([0.0 if over else gamma for over, _ in rows])


def test_what_follows_a_terminated_step_does_not_leak() -> None:
    reward, discount = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.0, 0.0, 0.5])
    value = torch.tensor([math.nan, -math.inf, 4.0], requires_grad=True)
    got = targets.bootstrap(reward, discount, value)
    assert got.tolist() == [1.0, 2.0, 5.0]
    assert not got.requires_grad


def test_nonsense_is_refused() -> None:
    flags = torch.zeros(3, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"gamma: expected 0 to 1, got 1.1"):
        targets.discount(1.1, flags)
    with pytest.raises(ValueError, match=r"terminated: expected bool, got torch.float32"):
        targets.discount(0.9, flags.float())
    with pytest.raises(ValueError, match=r"steps: expected shape \(3,\), got \(1,\)"):
        targets.discount(0.9, flags, torch.ones(1))
    with pytest.raises(ValueError, match=r"discount: expected shape \(3,\), got \(3, 1\)"):
        targets.bootstrap(torch.zeros(3), torch.zeros(3, 1), torch.zeros(3))
    with pytest.raises(ValueError, match=r"next_value: expected shape \(3,\), got \(2,\)"):
        targets.bootstrap(torch.zeros(3), torch.zeros(3), torch.zeros(2))
