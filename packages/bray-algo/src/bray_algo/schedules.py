"""Schedules: numbers that change in training, such as learning rates, as functions of the step.

Each is `start` until step `begin`, then changes for `num_steps` steps, then stays at `end`. To hand
a schedule on, fix its numbers: `functools.partial(linear, start=1.0, end=0.0, num_steps=1000)`.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Literal

from bray_algo.validation.scalars import check_not_negative, check_number, check_positive


def linear(step: float, *, start: float, end: float, num_steps: float, begin: float = 0) -> float:
    """Return a number that goes from `start` to `end` on a straight line.

    Raises:
        ValueError: a number is not finite, the step is negative, or `num_steps` is not positive;
            every function of this file refuses that.
    """
    _check_ends(start, end)
    return start + (end - start) * _progress(step, num_steps, begin)


def cosine(step: float, *, start: float, end: float, num_steps: float, begin: float = 0) -> float:
    """Return a number that goes from `start` to `end` on half a cosine, flat at both.

    Loshchilov & Hutter 2017, "SGDR: stochastic gradient descent with warm restarts", equation 5.
    """
    _check_ends(start, end)
    progress = _progress(step, num_steps, begin)
    return end + (start - end) * (1 + math.cos(math.pi * progress)) / 2


def exponential(
    step: float, *, start: float, end: float, num_steps: float, begin: float = 0
) -> float:
    """Return a number that goes from `start` to `end` by the same factor at each step.

    Raises:
        ValueError: `start` or `end` is zero, they differ in sign, or `linear` refuses an argument.
    """
    _check_ends(start, end)
    if not (start > 0 < end or start < 0 > end):
        raise ValueError(
            f"start, end: expected two numbers of one sign, not zero, got {start}, {end}"
        )
    return start * math.pow(end / start, _progress(step, num_steps, begin))


def piecewise(
    step: float,
    points: Sequence[tuple[float, float]],
    *,
    between: Literal["linear", "constant"] = "linear",
) -> float:
    """Return a number that is given at some steps as `(step, number)`.

    Between two of them it follows a straight line, or stays until the next. Before the first and
    after the last it is as there.

    Raises:
        ValueError: there is no point, their steps do not increase, or `between` is neither.
    """
    check_not_negative("step", step)
    steps = [at for at, _ in points]
    for number in itertools.chain(*points):
        check_number("points", number)
    if not steps or any(a >= b for a, b in itertools.pairwise(steps)):
        raise ValueError(f"points: expected one or more at increasing steps, got steps {steps}")
    if between not in ("linear", "constant"):
        raise ValueError(f"between: expected linear or constant, got {between!r}")
    after = bisect_right(steps, step)
    if after == 0 or after == len(steps) or between == "constant":
        return points[max(after - 1, 0)][1]
    (begin, start), (finish, end) = points[after - 1 : after + 1]
    return linear(step, start=start, end=end, num_steps=finish - begin, begin=begin)


def _check_ends(start: float, end: float) -> None:
    check_number("start", start)
    check_number("end", end)


def _progress(step: float, num_steps: float, begin: float) -> float:
    """Return how far the step is from `begin` on, 0 to 1."""
    check_not_negative("step", step)
    check_positive("num_steps", num_steps)
    check_number("begin", begin)
    return min(max((step - begin) / num_steps, 0.0), 1.0)
