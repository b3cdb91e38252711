from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bray_algo.schedules import cosine, exponential, linear, piecewise

RANGE: dict[str, Any] = {"start": 2.0, "end": 0.5, "num_steps": 100, "begin": 20}


@pytest.mark.parametrize("schedule", [linear, cosine, exponential])
def test_they_hold_go_and_hold(schedule: Any) -> None:
    numbers = [schedule(step, **RANGE) for step in range(200)]
    assert numbers[:21] == pytest.approx([2.0] * 21)
    assert numbers[120:] == pytest.approx([0.5] * 80)
    assert all(a > b for a, b in itertools.pairwise(numbers[20:121]))


@pytest.mark.parametrize(
    ("schedule", "want"),
    [
        (linear, [2.0, 1.625, 1.25, 0.875, 0.5]),
        (cosine, [2.0, 1.25 + 0.75 * math.sqrt(0.5), 1.25, 1.25 - 0.75 * math.sqrt(0.5), 0.5]),
        (exponential, [2.0, math.sqrt(2), 1.0, math.sqrt(0.5), 0.5]),
    ],
)
def test_the_way_between(schedule: Any, want: list[float]) -> None:
    got = [schedule(step, **RANGE) for step in (20, 45, 70, 95, 120)]
    assert got == pytest.approx(want)


@given(st.floats(0, 1e3), st.floats(-10, 10), st.floats(-10, 10))
def test_they_stay_between_their_ends(step: float, start: float, end: float) -> None:
    low, high = min(start, end) - 1e-9, max(start, end) + 1e-9
    for schedule in (linear, cosine):
        assert low <= schedule(step, start=start, end=end, num_steps=50) <= high


def test_exponential_loses_the_same_share_each_step_and_rises_too() -> None:
    numbers = [exponential(step, **RANGE) for step in range(20, 121)]
    shares = [b / a for a, b in itertools.pairwise(numbers)]
    assert shares == pytest.approx([0.25**0.01] * 100)
    assert exponential(50, start=-1.0, end=-4.0, num_steps=100) == pytest.approx(-2.0)


POINTS = [(10, 1.0), (20, 3.0), (40, 0.0)]


@pytest.mark.parametrize(
    ("step", "on_lines", "in_stairs"),
    [(0, 1, 1), (10, 1, 1), (15, 2, 1), (20, 3, 3), (30, 1.5, 3), (40, 0, 0), (99, 0, 0)],
)
def test_piecewise(step: int, on_lines: float, in_stairs: float) -> None:
    assert piecewise(step, POINTS) == pytest.approx(on_lines)
    assert piecewise(step, POINTS, between="constant") == in_stairs


def test_a_schedule_is_handed_on_as_a_function() -> None:
    weight = partial(linear, start=1.0, end=0.0, num_steps=4)
    assert [weight(step) for step in range(5)] == [1.0, 0.75, 0.5, 0.25, 0.0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: linear(0, start=1, end=0, num_steps=0), "num_steps: expected a positive number"),
        (lambda: cosine(0, start=1, end=0, num_steps=math.nan), "num_steps: .* got nan"),
        (lambda: exponential(0, start=1, end=0, num_steps=9), "two numbers of one sign, not zero"),
        (lambda: exponential(0, start=1, end=-1, num_steps=9), "one sign, not zero, got 1, -1"),
        (lambda: piecewise(0, []), r"points: expected one or more .* got steps \[\]"),
        (lambda: piecewise(0, [(1, 0), (1, 1)]), r"increasing steps, got steps \[1, 1\]"),
        (lambda: piecewise(0, [(1, 0)], between="x"), "between: .* got 'x'"),  # type: ignore[arg-type]
    ],
)
def test_nonsense_is_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
