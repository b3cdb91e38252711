"""A project's trials as they lie on disk.

A name that a browser sends never becomes a path: it is looked up in a listing of the folder.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from pathlib import Path

from bray.viewer.metric_log import MetricLog, tail
from bray.viewer.trial_file import is_text, json_object, launches, opener_of, text
from bray.viewer.trial_notes import notes_of
from bray.viewer.trial_settings import environment_of
from bray_core.errors import CodecError, NotFoundError
from bray_core.files.json_file import finite
from bray_core.files.trial_folders import CONFIG
from bray_core.metrics.json_lines import FILE, Row
from bray_core.metrics.recent_return import recent_return
from bray_core.trials.trial import Trial
from bray_core.trials.trial_notes import NOTES

_MAX_LOG_BYTES = 256 * 1024 * 1024
"""Bytes of metrics kept in memory; those of the trials looked at longest ago are dropped."""
_KEPT_TRIALS = 4096
_MAX_RECORD_BYTES = 64 * 1024
_SHOWN_LAUNCHES = 100
_SHOWN_BYTES = 4 * 1024 * 1024
"""Bytes of launches' records and changes in one answer; only the newest launches fit."""
_RETURNS = ("actor/mean_return", "evaluation_return")
"""Metrics that stand for the return where no episodes are recorded."""


class Project:
    """The trials below one folder. Thread-safe.

    Args:
        path: the folder.

    Raises:
        NotFoundError: there is no such folder.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise NotFoundError(f"project: no folder {path}: expected one that `bray train` wrote")
        self.path = path.resolve()
        self._lock = threading.Lock()
        self._logs: OrderedDict[str, MetricLog] = OrderedDict()
        self._summaries: dict[str, tuple[object, dict[str, object]]] = {}

    def names(self) -> list[str]:
        """Return the names of all trials, sorted."""
        with os.scandir(self.path) as entries:
            return sorted(entry.name for entry in entries if _is_trial(entry))

    def trial(self, name: str) -> Path:
        """Return a trial's folder.

        Raises:
            NotFoundError: there is no trial of that name.
        """
        with os.scandir(self.path) as entries:
            if not any(entry.name == name and _is_trial(entry) for entry in entries):
                raise NotFoundError(f"trial: no {name[:100]!r} in this project")
        return self.path / name

    def metrics(self, name: str) -> MetricLog:
        """Return the metrics of a trial; NotFoundError where there is no trial of that name."""
        path = self.trial(name)
        with self._lock:
            log = self._logs.pop(name, None) or MetricLog(path)
            self._logs[name] = log
            total = sum(log.num_bytes for log in self._logs.values())
            while total > _MAX_LOG_BYTES and len(self._logs) > 1:  # the newest always stays
                _, dropped = self._logs.popitem(last=False)
                total -= dropped.num_bytes
        return log

    def summaries(self) -> list[dict[str, object]]:
        """Return a few figures of each trial; a trial that has not changed is not read again."""
        names = self.names()
        if len(self._summaries) > _KEPT_TRIALS:
            self._summaries.clear()
        return [self._summary(name) for name in names]

    def _summary(self, name: str) -> dict[str, object]:
        path = self.path / name
        stamp = _stamp(path)
        kept = self._summaries.get(name)
        if kept is None or kept[0] != stamp:  # a project of 100 trials is asked for every 3 s
            kept = self._summaries[name] = stamp, _figures(path)
        return {"name": name, "state": state(path), **kept[1]}


def describe(trial: Path) -> dict[str, object]:
    """Return a trial's state, settings, result, figures, and launches with their records."""
    return {
        "name": trial.name,
        "state": state(trial),
        "config": text(trial, trial / CONFIG),
        "result": json_object(trial, trial / "result.json"),
        "notes": dict(notes_of(trial).document()),
        "launches": _records(trial),
        **_figures(trial),
    }


def _records(trial: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    left = _SHOWN_BYTES
    for launch in reversed(launches(trial)[-_SHOWN_LAUNCHES:]):
        record = json_object(trial, launch / "launch.json", _MAX_RECORD_BYTES)
        changes = text(trial, launch / "changes.diff")
        left -= len(str(record)) + len(changes or "")
        if left < 0 and found:
            break
        found.append({"name": launch.name, "record": record, "changes": changes})
    return found


def newest_values(found: list[Row]) -> dict[str, float]:
    """Return the newest value of each metric in the lines."""
    values: dict[str, float] = {}
    for row in found:
        values |= {name: value for name, value in row.values.items() if value is not None}
    return values


def state(trial: Path) -> str:
    """Return the state of a trial as `bray trials` shows it; `crashed` where it cannot be read."""
    try:
        return Trial(trial).state
    except (CodecError, NotFoundError, OSError):  # a damaged record must not hide all trials
        return "crashed"


def _is_trial(entry: os.DirEntry[str]) -> bool:
    name = entry.name
    return name[0] != "." and is_text(name) and os.path.isdir(Path(entry.path, "launches"))


def _stamp(trial: Path) -> tuple[object, ...]:
    """Return the times and sizes of the files that a trial's figures are read from."""
    every = launches(trial)
    own = (trial / name for name in ("result.json", CONFIG, NOTES))
    files = [*own, *(launch / FILE for launch in every[-1:])]
    return (len(every), *(_time_and_size(file) for file in files))


def _time_and_size(file: Path) -> tuple[int, int]:
    try:
        found = file.stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


def _figures(trial: Path) -> dict[str, object]:
    every, found = launches(trial), tail(trial)
    result = json_object(trial, trial / "result.json")
    last = found[-1] if found else None
    return {
        "return": mean_return(trial, newest_values(found)),
        "evaluation_return": finite(result.get("evaluation_return")),
        "reached": result.get("reached") is True if "reached" in result else None,
        "frames": last.frames if last else None,
        "steps": last.steps if last else None,
        "version": last.policy_version if last else None,
        "seconds": last.seconds if last else None,
        "environment": environment_of(trial),
        "tags": list(notes_of(trial).tags),
        "num_launches": len(every),
        "began_s": _began(every),
        "updated_s": last.wall_time_s if last else None,
    }


def mean_return(trial: Path, values: dict[str, float]) -> float | None:
    """Return the mean of a trial's last 100 training episodes, or the metric that stands for it."""
    try:
        recent = recent_return(trial, opener_of(trial))
    except OSError:
        recent = None
    return (
        recent if recent is not None else next((values[n] for n in _RETURNS if n in values), None)
    )


def _began(every: list[Path]) -> float | None:
    try:
        return every[0].stat().st_ctime if every else None
    except OSError:
        return None
