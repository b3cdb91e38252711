"""The settings of a trial as they were written, by their dotted names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from bray.viewer import trial_file
from bray_core.errors import ConfigError
from bray_core.files.trial_folders import CONFIG
from bray_core.settings.settings_tree import parse, unwrap

MAX_SETTINGS = 2000
"""Number of a trial's settings that are looked at."""
_MAX_DEPTH = 32
_MAX_CHARS = 300
_TASK = ("environment", "task", "command")
"""Settings of a source that say what is played, the first that is given."""


def nested_settings(trial: Path) -> Mapping[str, Any]:
    """Return a trial's settings, empty where they cannot be read."""
    text = trial_file.text(trial, trial / CONFIG)
    try:
        found = None if text is None else _parsed(text)
    except ConfigError:
        return {}
    return found if isinstance(found, dict) else {}


def setting(trial: Path, part: str, name: str) -> object:
    """Return one setting of a trial, None where there is none."""
    settings = nested_settings(trial).get(part)
    return settings.get(name) if isinstance(settings, dict) else None


def flat_settings(trial: Path) -> dict[str, object]:
    """Return a trial's settings by their dotted names: numbers, switches, and texts of the rest."""
    found: dict[str, object] = {}
    for name, value in _leaves(nested_settings(trial), ""):
        found[name] = value
        if len(found) == MAX_SETTINGS:
            break
    return found


def environment_of(trial: Path) -> str | None:
    """Return what a trial's sources play, None where its settings do not say it."""
    settings = nested_settings(trial)
    sources = settings.get("sources")
    every = [*sources.values()] if isinstance(sources, dict) else [settings.get("source")]
    played = dict.fromkeys(task for source in every if (task := _task(source)))
    return " + ".join(played)[:_MAX_CHARS] or None


def _task(source: object) -> str | None:
    if not isinstance(source, dict):
        return None
    found = (source.get(name) for name in _TASK)
    return next((" ".join(map(str, _list(one))) for one in found if one), None)


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _leaves(settings: object, prefix: str, depth: int = 0) -> Iterator[tuple[str, object]]:
    if isinstance(settings, dict) and settings and depth < _MAX_DEPTH:
        for name, value in settings.items():
            yield from _leaves(value, f"{prefix}.{name}" if prefix else str(name), depth + 1)
    elif prefix:
        yield prefix[:_MAX_CHARS], _plain(settings)


def _plain(value: object) -> object:
    """Return a value that a table shows: a number, a switch, nothing, or a text."""
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int) and abs(value) < 2**53:
        return value
    if isinstance(value, list):
        return " ".join(str(one) for one in value[:64])[:_MAX_CHARS]
    return ("" if isinstance(value, dict) else str(value))[:_MAX_CHARS]


@lru_cache(maxsize=256)
def _parsed(text: str) -> Any:
    """Return settings as they were written; cached, as pages ask again and again."""
    return unwrap(parse(text, CONFIG))
