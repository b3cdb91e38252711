"""A quantile sketch that can be merged: counts in logarithmic bins, as in DDSketch.

Masson, Rim and Lee, "DDSketch: a fast and fully-mergeable quantile sketch with relative-error
guarantees", VLDB 2019, section 2. Bin i holds the values in (γ^(i-1), γ^i] with γ = (1+α)/(1-α);
its middle 2γ^i/(γ+1) is within the share α of each of them. Merging is adding counts, so that a
merged sketch is the sketch of all values, in whatever order it came about.

Magnitudes are bounded, and with them the number of bins: below 1e-12 a value counts as zero, above
1e18 as 1e18.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

RELATIVE_ERROR = 0.01
"""α: largest relative error of a quantile."""

_GAMMA = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_LOG_GAMMA = math.log(_GAMMA)
_SMALLEST = 1e-12
_FIRST = math.ceil(math.log(_SMALLEST) / _LOG_GAMMA) - 1
MAX_BIN = math.ceil(math.log(1e18) / _LOG_GAMMA) - _FIRST
"""Bins are numbered from 1 to here by magnitude, negative values likewise below 0; 0 is zero."""


def bins(values: npt.NDArray[np.float64]) -> dict[int, int]:
    """Return how many of the values `[N]` fall into each bin; NaN falls into none."""
    values = values[~np.isnan(values)]
    magnitude = np.abs(values)
    is_zero = magnitude < _SMALLEST
    magnitude[is_zero] = 1.0
    numbers = np.ceil(np.log(np.minimum(magnitude, 1e18)) / _LOG_GAMMA) - _FIRST
    numbers[is_zero] = 0
    signed = (np.clip(numbers, 0, MAX_BIN) * np.sign(values)).astype(np.int64)
    found, counts = np.unique(signed, return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def merge(into: dict[int, int], other: Mapping[int, int]) -> None:
    """Add the counts of another sketch."""
    for number, count in other.items():
        into[number] = into.get(number, 0) + count


def middle(number: int) -> float:
    """Return the number that stands for all values of a bin."""
    if number == 0:
        return 0.0
    value = 2 * _GAMMA ** (abs(number) + _FIRST) / (_GAMMA + 1)
    return math.copysign(value, number)


def upper(number: int) -> float:
    """Return the largest value of a bin."""
    if number > 0:
        return _GAMMA ** (number + _FIRST)
    return -(_GAMMA ** (-number + _FIRST - 1)) if number else 0.0


def quantile(counts: Mapping[int, int], q: float) -> float:
    """Return the value below which the share `q` of all values lies; NaN of none."""
    rank = q * (sum(counts.values()) - 1)
    seen = 0
    for number in sorted(counts):
        seen += counts[number]
        if seen > rank:
            return middle(number)
    return math.nan
