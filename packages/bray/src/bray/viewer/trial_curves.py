"""The curves of trials as a chart shows them: smoothed, thinned, seeds drawn together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bray.viewer import curves
from bray.viewer.metric_log import Curve
from bray.viewer.project import Project
from bray.viewer.seed_curves import summarised


def read_curves(
    project: Project,
    names: Sequence[str],
    metric: str,
    axis: str,
    seeds: str,
    weight: float,
    points: int,
    span: tuple[float, float],
) -> list[dict[str, object]]:
    """Return a metric's curve of each group of seeds, and of each trial that belongs to none.

    Args:
        project: the project of the trials.
        names: names of the trials.
        metric: name of the metric.
        axis: one of `metric_log.AXES`.
        seeds: one of `seed_curves.SUMMARIES`.
        weight: weight of the smoothing, 0 for none.
        points: number of points of a curve, at most.
        span: least and greatest x.
    """

    def columns(name: str) -> tuple[curves.Floats, curves.Floats]:
        return _column(project.metrics(name).curve(metric, axis), weight, span)

    found, alone = summarised(names, columns, seeds, points)
    for name in alone:
        curve = project.metrics(name).curve(metric, axis)
        found.append({"trial": name, **_curve(curve, weight, points, span)})
    return found


def _curve(
    curve: Curve, weight: float, points: int, span: tuple[float, float]
) -> dict[str, object]:
    """Return the part of a curve whose x is in the span, smoothed and thinned.

    `starts` are the indices of points with which a launch begins: no line leads to them.
    """
    inside = (curve.x >= span[0]) & (curve.x <= span[1])
    x, y, launch = curve.x[inside], curve.y[inside], curve.launch[inside]
    smooth = curves.smoothed(curve.y, weight)[inside]
    chosen = curves.thinned(smooth, points)
    low, high = curves.envelope(y, chosen)
    shown = {"x": x[chosen], "y": smooth[chosen]}
    if weight or len(x) > len(chosen):
        shown |= {"low": low, "high": high}
    columns = {name: [float(f"{v:.6g}") for v in c.tolist()] for name, c in shown.items()}
    starts = (np.flatnonzero(np.diff(launch[chosen])) + 1).tolist()
    last = float(y[-1]) if len(y) else None
    return {"count": len(x), "last": last, "starts": starts, **columns}


def _column(
    curve: Curve, weight: float, span: tuple[float, float]
) -> tuple[curves.Floats, curves.Floats]:
    """Return x, ascending, and y of the part of a curve whose x is in the span, smoothed."""
    inside = (curve.x >= span[0]) & (curve.x <= span[1])
    x, y = curve.x[inside], curves.smoothed(curve.y, weight)[inside]
    order = np.argsort(x, kind="stable")
    return x[order], y[order]
