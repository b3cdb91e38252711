"""Trials beside each other: the settings that differ and the figures; of two, their code too."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from bray.viewer import project, trial_file
from bray.viewer.metric_log import tail
from bray.viewer.trial_notes import notes_of
from bray.viewer.trial_settings import flat_settings
from bray_core.files.json_file import finite
from bray_core.trials.launch_record import CHANGES, RECORD

_MAX_FIGURES = 200
_MAX_PACKAGES = 2000
_MAX_LINES = 2000
"""Lines of uncommitted changes that two trials are compared by."""
_CONTEXT = 3
_CODE = ("commit", "is_changed", "python", "platform", "host", "folder", "command", "seed")
_FIRST = ("evaluation_return", "return", "reached", "frames", "seconds", "steps", "version")
"""Figures that are named first."""


class ComparedTrial(TypedDict):
    """One row of the table."""

    name: str
    state: str
    tags: list[str]
    settings: dict[str, object]
    figures: dict[str, float]


def compared(trials: Sequence[Path]) -> dict[str, object]:
    """Return the settings and figures of trials.

    Returns:
        `{"trials": [ComparedTrial], "settings", "differing", "figures"}`, the last three names. A
        setting differs if it has not the same value in all trials, or is absent in some.
    """
    rows = [_row(trial) for trial in trials]
    names = list(dict.fromkeys(name for row in rows for name in row["settings"]))
    figures = dict.fromkeys(name for row in rows for name in row["figures"])
    first = [name for name in _FIRST if name in figures]
    return {
        "trials": rows,
        "settings": names,
        "differing": differing([row["settings"] for row in rows]),
        "figures": [*first, *(name for name in figures if name not in first)][:_MAX_FIGURES],
    }


def differing(columns: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the names whose values are not the same everywhere.

    First come those with several values, then those that some columns have and others have not.
    """
    known = [column for column in columns if column]  # settings that cannot be read say nothing
    names = dict.fromkeys(name for column in known for name in column)
    values = {name: {str(column[name]) for column in known if name in column} for name in names}
    absent = [name for name in names if any(name not in column for column in known)]
    several = [name for name in names if len(values[name]) > 1]
    return [*several, *(name for name in absent if name not in several)]


def _row(trial: Path) -> ComparedTrial:
    return {
        "name": trial.name,
        "state": project.state(trial),
        "tags": list(notes_of(trial).tags),
        "settings": flat_settings(trial),
        "figures": _figures(trial),
    }


def _figures(trial: Path) -> dict[str, float]:
    """Return the numbers of a trial's result, and those of its newest metrics."""
    result = trial_file.json_object(trial, trial / "result.json")
    found = tail(trial)
    last = found[-1] if found else None
    known: dict[str, object] = {
        "return": project.mean_return(trial, project.newest_values(found)),
        "frames": last and last.frames,
        "steps": last and last.steps,
        "seconds": last and last.seconds,
        "version": last and last.policy_version,
        **result,
    }
    numbers = ((name[:100], _number(value)) for name, value in known.items())
    return dict([(n, value) for n, value in numbers if value is not None][:_MAX_FIGURES])


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, bool) else finite(value)


def code_difference(first: Path, second: Path) -> dict[str, object]:
    """Return how the code of two trials' newest launches differs.

    Returns:
        `{"launch": [[name, first, second]], "packages": [[name, first, second]], "changes": lines}`
        with what differs alone. The lines are a unified diff from the first trial's uncommitted
        changes to the second's.
    """
    records = [_newest_record(trial) for trial in (first, second)]
    packages = [_texts(record.get("packages")) for record in records]
    heads = [_texts({name: record.get(name) for name in _CODE}) for record in records]
    old, new = _changes(first), _changes(second)
    diff = difflib.unified_diff(old, new, first.name, second.name, n=_CONTEXT, lineterm="")
    return {
        "launch": _pairs(heads),
        "packages": _pairs(packages),
        "changes": [line[:1000] for line in diff],
        "num_lines": [len(old), len(new)],
    }


def _pairs(columns: Sequence[Mapping[str, str]]) -> list[list[str | None]]:
    names = dict.fromkeys(name for column in columns for name in column)
    pairs = [[name, *(column.get(name) for column in columns)] for name in names]
    return [pair for pair in pairs if pair[1] != pair[2]]


def _texts(found: object) -> dict[str, str]:
    if not isinstance(found, dict):
        return {}
    texts = {}
    for name, value in list(found.items())[:_MAX_PACKAGES]:
        if value is not None:
            words = " ".join(map(str, value)) if isinstance(value, list) else str(value)
            texts[str(name)[:100]] = words[:1000]
    return texts


def _newest_record(trial: Path) -> dict[str, object]:
    for launch in reversed(trial_file.launches(trial)):
        if record := trial_file.json_object(trial, launch / RECORD):
            return record
    return {}


def _changes(trial: Path) -> list[str]:
    for launch in reversed(trial_file.launches(trial)[-1:]):
        return (trial_file.text(trial, launch / CHANGES) or "").splitlines()[:_MAX_LINES]
    return []
