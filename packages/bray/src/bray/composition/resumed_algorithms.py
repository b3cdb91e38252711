"""A trial goes on with the algorithms that it was trained by."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bray.registry import is_own_code
from bray_core.errors import ConfigError
from bray_core.files.trial_folders import CONFIG
from bray_core.settings.settings_tree import read, unwrap


def check_algorithms(trial: Path, settings: Mapping[str, Any]) -> None:
    """Refuse to go on with another algorithm, whose checkpoints mean something else.

    Several algorithms have networks of one kind: nobody would notice. Code of yours may have
    another name than before, and is not looked at.

    Args:
        trial: folder of the trial, which may be new.
        settings: the launch's, as `config.yaml` holds them.

    Raises:
        ConfigError: names the setting, and both algorithms.
    """
    if not any((trial / "checkpoints").glob("**/*.pt")):
        return
    before = _algorithms(_settings(trial / CONFIG))
    for key, name in _algorithms(settings).items():
        known = before.get(key, name)
        if name != known and not is_own_code(name) and not is_own_code(known):
            raise ConfigError(
                f"{key}: expected {known!r}, by which {trial} was trained, got {name!r}: choose "
                "another --trial"
            )


def _settings(file: Path) -> Mapping[str, Any]:
    try:
        found = unwrap(read(file))
    except ConfigError:  # it says nothing of what was trained
        return {}
    return found if isinstance(found, Mapping) else {}


def _algorithms(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the algorithms of a template by the keys of their settings."""
    found = {"algorithm": settings.get("algorithm")}
    trainers = settings.get("trainers")
    for name, part in (trainers if isinstance(trainers, Mapping) else {}).items():
        if isinstance(part, Mapping):
            found[f"trainers.{name}.algorithm"] = part.get("algorithm")
    return {key: name for key, name in found.items() if isinstance(name, str)}
