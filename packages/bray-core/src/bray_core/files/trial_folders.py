"""Where trials and their launches lie, and the names of some of their files."""

from __future__ import annotations

import re
from pathlib import Path

PROJECT = Path("trials")
"""Default folder of trials."""
CONFIG = "config.yaml"
"""File with the settings of a trial, and of each launch."""
EPISODES = "episodes"
"""Folder of a trial's recorded episodes."""
BEFORE = "config.before.yaml"
"""File with the trial's former settings, in the folder of the launch that changed them."""


def trial_of(settings: Path) -> Path:
    """Return the folder of the trial that `bray train` makes of a YAML file by default."""
    return settings.parent if settings.name == CONFIG else PROJECT / settings.stem


def newest_launch(path: Path) -> Path | None:
    """Return the folder of a trial's newest launch, or None where there is none."""
    return next(reversed(launches(path)), None)


def launches(path: Path) -> list[Path]:
    """Return the folders of a trial's launches, the oldest first; none where it is no trial."""
    try:
        return sorted((e for e in (path / "launches").iterdir() if e.name[0] != "."), key=_order)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _order(launch: Path) -> tuple[str, int]:
    """Return the sorting key of a launch; those of one second are numbered."""
    day, _, rest = launch.name.partition("-")
    second, _, number = rest.partition("-")
    return f"{day}-{second}", int(number) if number.isdecimal() else 0


def trial_name(algorithm: str, task: str, seed: int | None) -> str:
    """Return the folder of a trial of an algorithm on a task; without a seed it is a group's."""
    name = f"{Path(algorithm).name}-{task.rpartition(':')[2]}"
    return as_name(name if seed is None else f"{name}-{seed}")


def as_name(text: str) -> str:
    """Return what a trial's folder may be named."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)
