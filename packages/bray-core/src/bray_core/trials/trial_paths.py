"""Where trials lie, and what some of their files are called. Imports nothing heavy."""

from __future__ import annotations

from pathlib import Path

PROJECT = Path("trials")
"""The folder of the trials where none is named."""
CONFIG = "config.yaml"
"""Settings of a trial, and of each launch."""
BEFORE = "config.before.yaml"
"""In the folder of a launch that changed the trial's settings: what they were."""


def trial_of(settings: Path) -> Path:
    """Return the folder of the trial that `bray train` makes of a YAML file by default."""
    return settings.parent if settings.name == CONFIG else PROJECT / settings.stem
