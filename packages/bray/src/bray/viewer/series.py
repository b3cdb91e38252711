"""Curves made fit for a screen: smoothed, and thinned to the points that can be told apart."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def smoothed(values: Floats, weight: float) -> Floats:
    """Return an exponential moving average, `[N]`: s_t = Σ w^(t-i) v_i / Σ w^(t-i), i ≤ t.

    The denominator takes away the pull of the beginning, as in Adam (Kingma and Ba 2015, section
    3).

    Args:
        values: `[N]`, finite.
        weight: w, 0 (no smoothing) to below 1.
    """
    if weight == 0.0:
        return values
    total, norm, result = 0.0, 0.0, np.empty_like(values)
    for index, value in enumerate(values.tolist()):
        total = weight * total + value
        norm = weight * norm + 1.0
        result[index] = total / norm
    return result


def thinned(x: Floats, y: Floats, points: int) -> npt.NDArray[np.int64]:
    """Return the indices of at most `points` that show what all of them would.

    Largest Triangle Three Buckets (Steinarsson 2013, "Downsampling time series for visual
    representation", section 4.2): of each bucket the point that spans the largest triangle with
    the one chosen before and the mean of the next bucket. First and last stay.

    Args:
        x: `[N]`, in the order in which the curve is drawn.
        y: `[N]`.
        points: 3 or more.
    """
    number = len(x)
    if number <= points:
        return np.arange(number)
    edges = np.linspace(1, number - 1, points - 1).astype(np.int64)
    chosen = np.zeros(points, np.int64)
    for bucket in range(points - 2):
        start, stop = edges[bucket], edges[bucket + 1]
        ahead = slice(stop, edges[bucket + 2] if bucket < points - 3 else number)
        at = chosen[bucket]
        areas = np.abs(
            (x[at] - x[ahead].mean()) * (y[start:stop] - y[at])
            - (x[at] - x[start:stop]) * (y[ahead].mean() - y[at])
        )
        chosen[bucket + 1] = start + int(areas.argmax())
    chosen[-1] = number - 1
    return chosen


def envelope(y: Floats, chosen: npt.NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Return the least and greatest value around each chosen point, `[K]` each.

    Args:
        y: `[N]`.
        chosen: `[K]`, ascending, from `thinned`.
    """
    if not len(chosen):
        return y, y
    starts = np.concatenate([[0], (chosen[:-1] + chosen[1:] + 1) // 2])
    return np.minimum.reduceat(y, starts), np.maximum.reduceat(y, starts)
