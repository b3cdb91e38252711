"""A line chart as SVG text: what the page draws by script, for a file that runs none."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

_WIDTH, _HEIGHT = 560, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 10, 26
_STEPS = (1, 2, 5, 10)
_COLOURS = 10
_DASHES = ("", "6 3", "2 3", "8 3 2 3")
_SUFFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True, kw_only=True, slots=True)
class ChartCurve:
    """One line of a chart; the columns have `N` numbers each."""

    slot: int
    """Number of its colour."""
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    """Lower edge of the band around it; empty: it has none."""
    high: Sequence[float] = ()
    """Upper edge of that band."""
    starts: Sequence[int] = field(default=())
    """Indices of points that no line leads to, since another launch begins there."""


def chart(title: str, x_label: str, curves: Sequence[ChartCurve]) -> str:
    """Return the text of an SVG element; one without curves says so."""
    drawn = [curve for curve in curves if len(curve.x)]
    head = (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}" '
        'xmlns="http://www.w3.org/2000/svg">'
    )
    if not drawn:
        return f'{head}<text x="{_WIDTH / 2}" y="{_HEIGHT / 2}">nothing recorded</text></svg>'
    x = _Scale([value for c in drawn for value in c.x], _LEFT, _WIDTH - _RIGHT)
    every = [value for c in drawn for column in (c.y, c.low, c.high) for value in column]
    y = _Scale(every, _HEIGHT - _BOTTOM, _TOP, room=0.04)
    lines = [_curve(curve, x, y) for curve in drawn]
    return "".join([head, *_grid(x, y, x_label), *lines, "</svg>"])


class _Scale:
    """From numbers to pixels."""

    def __init__(
        self, values: Sequence[float], start: float, end: float, room: float = 0.0
    ) -> None:
        low, high = min(values), max(values)
        edge = (high - low) * room or (0.0 if high > low else abs(high) * 0.1 or 1.0)
        self.low, self.high = low - edge, high + edge
        self._start, self._end = start, end

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self._start + share * (self._end - self._start), 1)

    def ticks(self, number: float) -> list[float]:
        rough = (self.high - self.low) / number
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(k * power for k in _STEPS if k * power >= rough * 0.999)
        first, last = math.ceil(self.low / step), math.floor(self.high / step + 1e-9)
        return [k * step for k in range(first, last + 1)]


def _grid(x: _Scale, y: _Scale, x_label: str) -> list[str]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = []
    for tick in y.ticks(4):
        at = y(tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{at}" y2="{at}"/>')
        words = short_number(tick)
        parts.append(f'<text class="left" x="{_LEFT - 7}" y="{at + 4}">{words}</text>')
    for tick in x.ticks(5):
        if (at := x(tick)) < right - 80:
            parts.append(f'<text x="{at}" y="{_HEIGHT - 8}">{short_number(tick)}</text>')
    parts.append(f'<line class="axis" x1="{_LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>')
    parts.append(f'<text class="left" x="{right}" y="{_HEIGHT - 8}">{escape(x_label)}</text>')
    return parts


def _curve(curve: ChartCurve, x: _Scale, y: _Scale) -> str:
    edges = [0, *curve.starts, len(curve.x)]
    strokes = list(itertools.pairwise(edges))
    colour, dash = curve.slot % _COLOURS, _DASHES[curve.slot // _COLOURS % len(_DASHES)]
    parts = []
    if len(curve.low):
        high = [f"{x(a)} {y(b)}" for a, b in zip(curve.x, curve.high, strict=True)]
        low = [f"{x(a)} {y(b)}" for a, b in zip(curve.x, curve.low, strict=True)]
        area = "".join(f"M{'L'.join([*high[i:k], *low[i:k][::-1]])}Z" for i, k in strokes if k > i)
        parts.append(f'<path class="band f{colour}" d="{area}"/>')
    points = [f"{x(a)} {y(b)}" for a, b in zip(curve.x, curve.y, strict=True)]
    line = "".join(f"M{'L'.join(points[i:k])}" for i, k in strokes if k > i)
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    parts.append(f'<path class="line s{colour}" d="{line}"{dashed}/>')
    for i, k in strokes:
        if len(set(points[i:k])) == 1:  # a line to itself is not seen
            centre = f'cx="{x(curve.x[i])}" cy="{y(curve.y[i])}"'
            parts.append(f'<circle class="f{colour}" {centre} r="3"/>')
    return "".join(parts)


def short_number(value: float) -> str:
    """Return a number as people read it: `481.5`, `30.7k`, `3e-05`."""
    size = abs(value)
    for unit, suffix in _SUFFIXES:
        if size >= unit and (suffix != "k" or size >= 1e4):
            return f"{value / unit:.4g}{suffix}"
    return f"{value:.4g}".replace("-", "−", 1) if size >= 1e-3 or not size else f"{value:.1e}"
