"""Where trials and their launches lie, and the names of some of their files."""

from __future__ import annotations

import os
import re
from pathlib import Path

from bray_core.errors import ConfigError

PROJECT = Path("trials")
"""Default folder of trials."""
NAME_OR_FOLDER = "name of the trial below the project, or with a slash a folder: runs/walker"
"""What may say which trial is meant, on the command line and in a program."""
CONFIG = "config.yaml"
"""File with the settings of a trial, and of each launch."""
EPISODES = "episodes"
"""Folder of a trial's recorded episodes."""
BEFORE = "config.before.yaml"
"""File with the trial's former settings, in the folder of the launch that changed them."""
_MAX_NAME_BYTES = 255
"""Longest name of a file on the usual file systems."""


def trial_of(settings: Path) -> Path:
    """Return the folder of the trial that `bray train` makes of a YAML file by default."""
    return settings.parent if settings.name == CONFIG else PROJECT / settings.stem


def trial_path(trial: str | Path, project: Path = PROJECT) -> Path:
    """Return the folder of a trial that is named, or whose folder is given.

    Args:
        trial: a name of one below the project; with a slash, as a `Path`, or as `.` or `..`, a
            folder. A slash tells a folder from a name, as a shell tells a path from a command.
        project: the folder of the trials.

    Raises:
        ConfigError: it is empty, longer than a file's name, or neither text nor a path.
    """
    if not isinstance(trial, str | Path) or not str(trial):
        raise ConfigError(f"trial: expected the {NAME_OR_FOLDER}; got {trial!r}")
    if any(len(os.fsencode(name)) > _MAX_NAME_BYTES for name in Path(trial).parts):
        raise ConfigError(
            f"trial: expected names of at most {_MAX_NAME_BYTES} bytes, got {str(trial)[:60]!r}…"
        )
    folder = Path(trial)
    if folder.name in ("", ".."):  # the folder that somebody is in has a name, too
        return folder.resolve()
    is_folder = isinstance(trial, Path) or os.sep in trial
    return folder if is_folder else project / trial


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
