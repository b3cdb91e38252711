"""What `bray top` shows of a trial: its newest figures, as data and as lines of text."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from bray.cli.trial_tables import in_bytes
from bray.training.progress import duration
from bray.viewer import system_figures
from bray_core.errors import CodecError
from bray_core.files.escaping import escape_unprintable
from bray_core.files.trial_folders import newest_launch
from bray_core.metrics.json_lines import Row, tail
from bray_core.metrics.recent_return import EPISODES, recent_return
from bray_core.trials.trial import Trial

_WINDOWS = 12
"""Windows of episodes that are shown."""
_BARS = "▁▂▃▄▅▆▇█"
_RETURN, _MEMORY = "actor/episode_return", "process/memory_bytes"
_SHOWN_ROWS = 120
"""Lines of metrics that are looked at, one a second."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialBoard:
    """The newest figures of one trial."""

    trial: str
    state: str
    frames: float = 0.0
    steps: float = 0.0
    version: float = 0.0
    seconds: float = 0.0
    at_s: float | None = None
    """Time of the newest figures; None where there are none yet."""
    mean_return: float | None = None
    """Mean return of the last 100 episodes of training."""
    rates: dict[str, float] = field(default_factory=dict)
    """What happens a second: `frames`, `optimiser steps`."""
    losses: dict[str, float] = field(default_factory=dict)
    lag: float | None = None
    """Versions by which what was trained on was behind."""
    limit: str = ""
    """What limits the run, in words."""
    shares: dict[str, float] = field(default_factory=dict)
    """How busy each part is, and how full the buffer, 0 to 1."""
    memory_bytes: dict[str, float] = field(default_factory=dict)
    """Memory of each process, by component."""
    episode_returns: tuple[float, ...] = ()
    """Mean returns of the newest windows in which episodes ended, the newest last."""
    evaluations: dict[str, float] = field(default_factory=dict)
    """Figures of the last evaluation."""
    problem: str = ""
    """Why the figures cannot be read."""

    @classmethod
    def read(cls, trial: Trial) -> TrialBoard:
        """Read the newest figures of a trial; what cannot be read becomes its `problem`."""
        try:
            launch = newest_launch(trial.path)
            rows = [] if launch is None else tail(launch)[-_SHOWN_ROWS:]
            board = cls(trial=trial.name, state=trial.state)
            return board if not rows else _of_rows(trial, rows)
        except (CodecError, OSError) as error:
            return cls(trial=trial.name, state="unreadable", problem=str(error))

    def lines(self) -> list[str]:
        """Return the board as lines of text."""
        shown = [f"{escape_unprintable(self.trial)}: {self.state}{self._age()}"]
        if self.problem:
            return [*shown, escape_unprintable(self.problem)]
        if self.at_s is None:
            return [*shown, "no figures yet: they come once a second after the first step"]
        rates = ", ".join(f"{value:,.0f} {name}/s" for name, value in self.rates.items())
        shown.append(f"  frames       {self.frames:,.0f} in {duration(self.seconds)}; {rates}")
        lag = "" if self.lag is None else f", lag {self.lag:.2f} versions"
        shown.append(f"  version      {self.version:,.0f} after {self.steps:,.0f} steps{lag}")
        if self.mean_return is not None:
            shown.append(f"  return       {self.mean_return:.6g}, last {EPISODES} episodes")
        if self.episode_returns:
            newest = self.episode_returns[-1]
            shown.append(f"  episodes     {_curve(self.episode_returns)} {newest:.6g}")
        shown += [f"  {name:12} {value:.6g}" for name, value in self.evaluations.items()]
        shown += [f"  {name:12} {value:.4g}" for name, value in self.losses.items()]
        for name, share in self.shares.items():
            shown.append(f"  {name:12} {'█' * round(20 * share):20} {share:.0%}")
        for name, size in self.memory_bytes.items():
            shown.append(f"  memory       {in_bytes(size)} {escape_unprintable(name)}")
        return [*shown, f"  {self.limit}"]

    def _age(self) -> str:
        if self.at_s is None or self.state != "running":
            return ""
        age_s = time.time() - self.at_s
        return f", no news for {duration(age_s)}" if age_s > 10 else ""


def _of_rows(trial: Trial, rows: list[Row]) -> TrialBoard:
    known = system_figures.figures(rows, None)
    values: dict[str, float] = {}
    for row in rows:
        values |= {name: value for name, value in row.values.items() if value is not None}
    newest, found = rows[-1], _limit_and_shares(known)
    return TrialBoard(
        trial=trial.name,
        state=trial.state,
        frames=newest.frames,
        steps=newest.steps,
        version=newest.policy_version,
        seconds=newest.seconds,
        at_s=newest.wall_time_s,
        mean_return=recent_return(trial.path),
        rates=_rates(rows),
        losses={_last(name): v for name, v in values.items() if _last(name).endswith("loss")},
        lag=values.get("trainer/policy_lag_versions"),
        limit=found[0],
        shares=found[1],
        memory_bytes={_label(n): v for n, v in values.items() if n.startswith(_MEMORY)},
        episode_returns=tuple(v for r in rows if (v := r.values.get(_RETURN)) is not None)[
            -_WINDOWS:
        ],
        evaluations={_last(n): v for n, v in values.items() if "evaluation" in n},
    )


def _limit_and_shares(known: dict[str, Any]) -> tuple[str, dict[str, float]]:
    return known["limit"]["words"], known["shares"]


def _rates(rows: list[Row]) -> dict[str, float]:
    """Return frames and optimiser steps a second over the last windows."""
    newest = rows[-1]
    since = newest.wall_time_s - system_figures.WINDOW_S
    first = next((row for row in rows if row.wall_time_s >= since), newest)
    took_s = newest.wall_time_s - first.wall_time_s
    if took_s <= 0:
        return {}
    return {
        "frames": max(0.0, newest.frames - first.frames) / took_s,
        "steps": max(0.0, newest.steps - first.steps) / took_s,
    }


def _last(name: str) -> str:
    return name.partition("/")[2] or name


def _label(name: str) -> str:
    return name.partition("{")[2].removesuffix("}").removeprefix("component=")


def _curve(values: tuple[float, ...]) -> str:
    """Return values as a line of bars."""
    low, high = min(values), max(values)
    if high <= low:
        return _BARS[3] * len(values)
    return "".join(_BARS[round((v - low) / (high - low) * (len(_BARS) - 1))] for v in values)
