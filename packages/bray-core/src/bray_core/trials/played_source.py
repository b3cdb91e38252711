"""The environment that a trial trains in, told from its settings alone."""

from __future__ import annotations

from pathlib import Path

from bray_core.files.trial_folders import CONFIG
from bray_core.settings.settings_tree import Value, read, unwrap

_OF_SEVERAL = ("agents", "matches")
"""Kinds of a source whose agents `bray play` cannot seat."""


def played_source(trial: Path) -> Value | None:
    """Return the settings of the source of a trial that trains in one Gymnasium environment.

    Returns:
        None where simulators, several agents, several sources or games of a search are played.

    Raises:
        ConfigError: The settings cannot be read, or are not there.
    """
    root = read(trial / CONFIG)
    source = root.value.get("source") if isinstance(root.value, dict) else None
    if source is None or not isinstance(source.value, dict):
        return None
    algorithm = root.value.get("algorithm")
    if algorithm is not None and algorithm.value == "alphazero":  # a search knows the rules
        return None
    told = {name: unwrap(child) for name, child in source.value.items()}
    calls_itself = told.get("command") or told.get("external")
    if calls_itself or told.get("kind") in _OF_SEVERAL:
        return None
    environment = told.get("environment")
    return source if isinstance(environment, str) and environment else None
