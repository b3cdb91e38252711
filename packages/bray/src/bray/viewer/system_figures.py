"""The running system in figures: its parts, what flows between them, and what limits the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bray_core.metrics.json_lines import Row

WINDOW_S = 20.0
"""Length of time over which rates are taken."""
_WAITS = 0.2
"""Share of its time that the trainer waits, from which playing limits the run."""
_BUSY = 0.5
"""Share of its time that the model computes, from which it is named as the limit."""

_RETURN = "actor/episode_return"


@dataclass(frozen=True, slots=True)
class Figure:
    """One line in the box of a part, or at an arrow between two."""

    part: str
    """Name of a part, or `from-to` of an arrow."""
    words: str
    metric: str
    kind: Literal["value", "rate", "total"]
    unit: str = ""


FIGURES = (
    Figure("gamecore", "return", _RETURN, "value"),
    Figure("gamecore", "episode length", "actor/episode_length", "value", "steps"),
    Figure("gamecore", "episodes", "actor/episodes", "rate", "/s"),
    Figure("gamecore", "restarts", "gamecore/restarts", "total"),
    Figure("actor", "steps", "actor/steps", "rate", "/s"),
    Figure("actor", "steps lost", "actor/steps_lost", "total"),
    Figure("actor", "workers lost", "actor/rollouts_lost", "total"),
    Figure("actor", "workers restarted", "worker/restarts", "total"),
    Figure("model", "rows in a batch", "model/batch_rows", "value"),
    Figure("model", "forward pass", "model/forward_s", "value", "s"),
    Figure("model", "rows waiting", "model/queued_rows", "value"),
    Figure("model", "version", "trainer/policy_version", "value"),
    Figure("buffer", "waiting", "buffer/queued_segments", "value", "segments"),
    Figure("buffer", "stored", "buffer/stored_steps", "value", "steps"),
    Figure("buffer", "dropped", "buffer/dropped_segments", "rate", "/s"),
    Figure("buffer", "stale", "buffer/stale_segments", "rate", "/s"),
    Figure("buffer", "lost", "buffer/lost_segments", "total"),
    Figure("trainer", "loss", "trainer/loss", "value"),
    Figure("trainer", "optimiser steps", "trainer/steps", "rate", "/s"),
    Figure("trainer", "training on a replay", "trainer/train_s", "value", "s"),
    Figure("trainer", "taking a replay", "trainer/wait_s", "value", "s"),
    Figure("trainer", "uses of a replay", "trainer/reuse", "value"),
    Figure("trainer", "restarts", "trainer/restarts", "total"),
    Figure("gamecore-actor", "ticks", "actor/steps", "rate", "/s"),
    Figure("actor-model", "inference", "actor/steps", "rate", "rows/s"),
    Figure("actor-buffer", "push", "actor/steps", "rate", "steps/s"),
    Figure("buffer-trainer", "pop", "trainer/frames", "rate", "steps/s"),
    Figure("trainer-model", "publish", "trainer/policy_version", "rate", "versions/s"),
    Figure("trainer-model", "lag", "trainer/policy_lag_versions", "value", "versions"),
)


_WIRES = (
    Figure("source-agent", "", "actor/steps", "rate", "steps/s"),
    Figure("agent-model", "", "model/batch_rows", "value", "rows"),
    Figure("agent-buffer", "waiting", "buffer/queued_segments", "value"),
    Figure("agent-buffer", "stored", "buffer/stored_steps", "value"),
    Figure("buffer-trainer", "", "trainer/frames", "rate", "steps/s"),
    Figure("trainer-model", "version", "trainer/policy_version", "value"),
)
"""What is shown on the wires of a template's graph."""


def wire_figures(rows: Sequence[Row]) -> list[dict[str, object]]:
    """Return the figures on the wires of a template's graph.

    Args:
        rows: the last lines of one launch, the oldest first.

    Returns:
        `{"wire", "trainer", "words", "value", "unit"}` of each figure that was recorded. `wire` is
        `from-to` of two kinds of parts; `trainer` is None for what several trainers share.
    """
    values, rates = _values(rows), _rates(rows)
    shown: list[dict[str, object]] = []
    for figure in _WIRES:
        found = rates if figure.kind == "rate" else values
        for metric, value in found.items():
            name, _, label = metric.partition("{trainer=")
            if name == figure.metric:
                words = {"words": figure.words, "value": value, "unit": figure.unit}
                trainer = label.removesuffix("}") or None
                shown.append({"wire": figure.part, "trainer": trainer, **words})
    return shown


def figures(
    rows: Sequence[Row], capacity: float | None, mean_return: float | None = None
) -> dict[str, object]:
    """Return the figures in the picture of the running system.

    Args:
        rows: the last lines of one launch, the oldest first.
        capacity: number of segments that the buffer holds; None: unknown.
        mean_return: mean return of the last episodes, in place of that of the last second.

    Returns:
        `{"figures": [{part, words, value, unit}], "shares": {name: 0 to 1}, "limit": {part, words},
        "at_s"}`. A figure that was never recorded is left out.
    """
    values, rates = _values(rows), _rates(rows)
    if mean_return is not None:
        values[_RETURN] = mean_return
    shown = []
    for figure in FIGURES:
        found = rates if figure.kind == "rate" else values
        if figure.metric in found and (figure.kind != "total" or found[figure.metric]):
            value = found[figure.metric]
            shown.append(
                {"part": figure.part, "words": figure.words, "value": value, "unit": figure.unit}
            )
    shares = _shares(values, rates, capacity)
    return {
        "figures": shown,
        "shares": shares,
        "limit": _limit(values, rates, shares),
        "at_s": rows[-1].wall_time_s if rows else None,
    }


def _values(rows: Sequence[Row]) -> dict[str, float]:
    """Return the newest value of each metric."""
    newest: dict[str, float] = {}
    for row in rows:
        newest |= {name: value for name, value in row.values.items() if value is not None}
    return newest


def _rates(rows: Sequence[Row]) -> dict[str, float]:
    """Return the growth per second of each metric over the last `WINDOW_S`."""
    first: dict[str, tuple[float, float]] = {}
    last: dict[str, tuple[float, float]] = {}
    since = rows[-1].wall_time_s - WINDOW_S if rows else 0.0
    for row in rows:
        for name, value in row.values.items():
            if value is None:
                continue
            if row.wall_time_s <= since or name not in first:
                first[name] = row.wall_time_s, value
            last[name] = row.wall_time_s, value
    return {
        name: (end - start) / (end_s - first[name][0])
        for name, (end_s, end) in last.items()
        # A count that has fallen began anew with another launch: it has no rate yet.
        if (start := first[name][1]) <= end and end_s > first[name][0]
    }


def _shares(
    values: Mapping[str, float], rates: Mapping[str, float], capacity: float | None
) -> dict[str, float]:
    """Return the share of its time that each part works, and how full the buffer is, 0 to 1."""
    shares = {
        f"{part} busy": values[f"{part}/utilisation"]
        for part in ("actor", "model", "trainer")
        if f"{part}/utilisation" in values
    }
    train, wait = values.get("trainer/train_s"), values.get("trainer/wait_s")
    if "trainer busy" not in shares and train is not None and wait is not None and train + wait > 0:
        shares["trainer busy"] = train / (train + wait)
    rows, forward = values.get("model/batch_rows"), values.get("model/forward_s")
    if "model busy" not in shares and rows and forward is not None and "actor/steps" in rates:
        # Forwards a second, times the seconds that each takes.
        shares["model busy"] = min(1.0, rates["actor/steps"] / rows * forward)
    queued = values.get("buffer/queued_segments")
    if queued is not None and capacity:
        shares["buffer full"] = min(1.0, queued / capacity)
    return shares


def _limit(
    values: Mapping[str, float], rates: Mapping[str, float], shares: Mapping[str, float]
) -> dict[str, str | None]:
    """Say which part limits the run: the one that the others wait for."""
    busy = shares.get("trainer busy")
    if busy is None:
        return {"part": None, "words": "Too few figures yet to say what limits this run."}
    waits = f"The trainer waits {1 - busy:.0%} of its time for a replay"
    if _take_turns(values, busy):  # it waits for its turn: a replay is there when that comes
        waits = f"Playing and training take turns, and training takes {busy:.0%} of the time"
    if 1 - busy >= _WAITS:  # the trainer is not what limits: who plays too slowly?
        return _slow_player(waits, shares)
    queued, lost = values.get("buffer/queued_segments", 0.0), _lost(rates)
    if "buffer/stored_steps" in values:
        return {"part": "trainer", "words": "The replay always has data: training sets the pace."}
    if queued or lost:
        tail = f", {lost:.3g} segments/s are dropped or grow stale" if lost else ""
        words = f"Segments wait for the trainer{tail}: training limits this run."
        return {"part": "trainer", "words": words}
    return {"part": None, "words": "Playing and training take turns: neither waits for the other."}


def _take_turns(values: Mapping[str, float], busy: float) -> bool:
    """Return whether the trainer's idle time lies between its turns, not in taking replays."""
    train, wait = values.get("trainer/train_s"), values.get("trainer/wait_s")
    if train is None or wait is None or train + wait <= 0:
        return False
    return wait / (train + wait) < (1 - busy) / 2


def _slow_player(waits: str, shares: Mapping[str, float]) -> dict[str, str | None]:
    """Say what slows playing down, where the trainer waits for it."""
    model, actor = shares.get("model busy", 0.0), shares.get("actor busy", 0.0)
    if model >= max(_BUSY, actor):
        words = (
            f"{waits}, and the model computes {model:.0%} of the time: inference limits this run."
        )
        return {"part": "model", "words": words}
    if actor >= _BUSY:
        words = (
            f"{waits}, and runners step environments {actor:.0%} of the time: these limit this run."
        )
        return {"part": "gamecore", "words": words}
    return {"part": "gamecore", "words": f"{waits}: playing limits this run."}


def _lost(rates: Mapping[str, float]) -> float:
    return sum(rates.get(f"buffer/{what}_segments", 0.0) for what in ("dropped", "stale"))
