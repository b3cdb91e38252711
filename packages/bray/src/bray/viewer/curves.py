"""Curves for a screen: smoothed, and thinned to the points that an eye can tell apart."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_EXPONENT = 200.0
"""Powers of e that a block may use up of a float's range before a new block begins."""

_NO_WEIGHT = 1e-6
"""A weight below this changes no digit that is shown, and would make blocks of one value."""


def smoothed(values: Floats, weight: float) -> Floats:
    """Return an exponential moving average, `[N]`: s_t = Σ w^(t-i) v_i / Σ w^(t-i), i ≤ t.

    The denominator takes away the pull of the beginning, as in Adam (Kingma and Ba 2015, section
    3).

    Args:
        values: `[N]`, finite.
        weight: w, 0 (no smoothing) to below 1.
    """
    if weight < _NO_WEIGHT:
        return values
    # Within a block the sums are one cumsum of v / w^i, as long as w^i is far from underflow.
    block = max(1, int(_EXPONENT / -np.log(weight)))
    powers = weight ** np.arange(min(block, len(values)))
    result = np.empty_like(values)
    total = norm = 0.0
    with np.errstate(all="ignore"):  # values at the end of a float's range: no number is shown
        for start in range(0, len(values), block):
            part = values[start : start + block]
            decay = powers[: len(part)]
            totals = decay * (weight * total + np.cumsum(part / decay))
            norms = decay * (weight * norm + np.cumsum(1 / decay))
            result[start : start + block] = totals / norms
            total, norm = totals[-1], norms[-1]
    return result


def thinned(y: Floats, points: int) -> npt.NDArray[np.int64]:
    """Return the indices of at most `points` values whose curve looks like that of all.

    They are the least and the greatest value of each of equal parts, and both ends: no spike is
    lost.

    Args:
        y: `[N]`, finite, in the order in which the curve is drawn.
        points: greatest number of indices, 4 or more.
    """
    number = len(y)
    if number <= points:
        return np.arange(number)
    parts = (points - 2) // 2
    size = -(-number // parts)
    padded = np.append(y, np.full(size * parts - number, y[-1])).reshape(parts, size)
    starts = np.arange(parts) * size
    found = np.concatenate([starts + padded.argmin(1), starts + padded.argmax(1), [0]])
    return np.unique(np.append(found[found < number], number - 1))


def envelope(y: Floats, chosen: npt.NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Return the least and greatest value around each chosen point, `[K]` each.

    Args:
        y: values `[N]`.
        chosen: indices `[K]`, ascending, from `thinned`.
    """
    if not len(chosen):
        return y, y
    starts = np.concatenate([[0], (chosen[:-1] + chosen[1:] + 1) // 2])
    return np.minimum.reduceat(y, starts), np.maximum.reduceat(y, starts)
