"""`bray view`: what a trial holds and how it went, in the terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from bray_core.errors import NotFoundError

_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 60) -> str:
    """Draw a curve in one line of text, `width` characters at most."""
    if not values:
        return ""
    step = max(1, -(-len(values) // width))
    means = [
        sum(values[i : i + step]) / len(values[i : i + step]) for i in range(0, len(values), step)
    ]
    low, high = min(means), max(means)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in means)


def describe(trial: Path) -> str:
    """Return a trial's state as text.

    Raises:
        NotFoundError: the folder is no trial.
    """
    if not (trial / "launches").is_dir():
        raise NotFoundError(
            f"trial: {trial} is no trial folder: expected one that `bray train` or `bray recipe` "
            "wrote"
        )
    lines = [f"trial {trial}"]
    result = trial / "result.json"
    if result.is_file():
        figures = json.loads(result.read_text())
        lines += [
            f"  {name}: {value:,.6g}"
            for name, value in figures.items()
            if isinstance(value, int | float)
        ]
    else:
        lines.append("  not finished yet: the same command again goes on")
    curve = _curve(trial, "actor/episode_return")
    if curve:
        lines.append(f"  return  {sparkline(curve)}  {curve[0]:.1f} → {curve[-1]:.1f}")
    lines += [
        f"  export  {manifest.parent}"
        for manifest in sorted(trial.glob("models/*/onnx/*/manifest.json"))
    ]
    return "\n".join(lines)


def _curve(trial: Path, name: str) -> list[float]:
    values = []
    for log in sorted(trial.glob("launches/*/metrics.jsonl")):
        for line in log.read_text().splitlines():
            row = json.loads(line)
            if name in row.get("values", {}):
                values.append(float(row["values"][name]))
    return values
