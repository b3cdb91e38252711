"""The curves of a group of seeds as one: their median or mean, and the band of their quartiles."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bray.viewer.curves import Floats
from bray_core.trials.seed_group import groups

SUMMARIES = ("each", "median", "mean", "iqm")
"""What is drawn of a group: each of its trials, or their median, mean or interquartile mean."""


def over_seeds(curves: Sequence[tuple[Floats, Floats]], by: str, points: int) -> list[Floats]:
    """Return x, the summary and the interquartile band of several curves, `[N]` each.

    Each curve counts from its first to its last x, on straight lines between its points.

    Args:
        curves: x ascending and y of each, not empty.
        by: `median`, `mean` or `iqm`, the interquartile mean.
        points: number of points of the result, at most.
    """
    every = np.unique(np.concatenate([x for x, _ in curves]))
    x = every if len(every) <= points else np.linspace(every[0], every[-1], points)
    rows = np.stack([np.interp(x, *one, left=np.nan, right=np.nan) for one in curves])
    known = ~np.isnan(rows).all(0)  # between a curve's end and another's beginning is nothing
    x, rows = x[known], rows[:, known]
    middle = _MIDDLES[by](rows)
    # A curve that has ended counts no more: quartiles are of those that are there.
    low, high = np.nanquantile(rows, (0.25, 0.75), axis=0)
    return [x, middle, np.minimum(low, middle), np.maximum(high, middle)]


def _interquartile_mean(rows: Floats) -> Floats:
    """Return the mean of the middle half of each column, `[N]`; NaN counts as absent."""
    ordered = np.sort(rows, 0)  # NaN last
    count = (~np.isnan(rows)).sum(0)
    cut = count // 4
    place = np.arange(len(rows))[:, None]
    inside = (place >= cut) & (place < count - cut)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        mean: Floats = np.nanmean(np.where(inside, ordered, np.nan), 0)
    return mean


_MIDDLES: Mapping[str, Callable[[Floats], Floats]] = {
    "median": lambda rows: np.nanmedian(rows, 0),
    "mean": lambda rows: np.nanmean(rows, 0),
    "iqm": _interquartile_mean,
}


def summarised(
    names: Sequence[str],
    read: Callable[[str], tuple[Floats, Floats]],
    by: str,
    points: int,
) -> tuple[list[dict[str, object]], list[str]]:
    """Return the curve of each group of seeds, and the trials that belong to none.

    Args:
        names: names of the trials.
        read: returns a trial's x and y.
        by: one of `SUMMARIES`.
        points: number of points of a curve, at most.
    """
    found: list[dict[str, object]] = []
    grouped: set[str] = set()
    for group, members in ({} if by == "each" else groups(names)).items():
        curves = [curve for curve in map(read, members) if len(curve[0])]
        grouped.update(members)
        found.append(_drawn(group, members, curves, by, points))
    return found, [name for name in names if name not in grouped]


def _drawn(
    group: str,
    members: Sequence[str],
    curves: Sequence[tuple[Floats, Floats]],
    by: str,
    points: int,
) -> dict[str, object]:
    columns: Mapping[str, list[float]] = {"x": [], "y": [], "low": [], "high": []}
    if curves:
        made = over_seeds(curves, by, points)
        columns = {
            name: [float(f"{value:.6g}") for value in column.tolist()]
            for name, column in zip(("x", "y", "low", "high"), made, strict=True)
        }
    last = columns["y"][-1] if columns["y"] else None
    name = f"{group} ({len(members)} seeds)"
    head = {"trial": members[0], "name": name, "count": len(columns["x"]), "last": last}
    return {**head, "starts": [], **columns}
