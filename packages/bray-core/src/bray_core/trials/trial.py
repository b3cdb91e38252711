"""Reading, removing and cloning the folders of trials, without launching them."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

from bray_core.errors import (
    AlreadyExistsError,
    BrayError,
    CodecError,
    ConfigError,
    NotFoundError,
)
from bray_core.files.json_file import read_object
from bray_core.files.trial_folders import CONFIG, launches, newest_launch
from bray_core.metrics.json_lines import Row, tail
from bray_core.settings.choice import closest
from bray_core.settings.settings_tree import read, unwrap
from bray_core.trials.experiment import check_name
from bray_core.trials.launch_record import LaunchRecord
from bray_core.trials.trial_lock import is_running, lock_trial
from bray_core.trials.trial_notes import NOTES

State: TypeAlias = Literal["new", "running", "finished", "interrupted", "failed", "crashed"]

RESULT = "result.json"
_RESUMED = ("checkpoints", "models", "buffers")
_NOT_RESUMED = shutil.ignore_patterns("onnx", "partial.pt", ".*")


class Trial:
    """A trial's folder.

    Args:
        path: The folder.

    Raises:
        NotFoundError: The folder is no trial; names the closest one beside it.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        if not _is_trial(self.path):
            project = self.path.parent
            near = closest(self.path.name, [other.name for other in _folders(project)])
            raise NotFoundError(
                f"trial: {self.path} is no trial folder: expected one that a launch wrote{near}"
            )

    @property
    def name(self) -> str:
        """Name of the trial, which is its folder's."""
        return self.path.name

    @property
    def state(self) -> State:
        """State of the newest launch; `new` where there was none."""
        newest = newest_launch(self.path)
        if newest is None:
            return "new"
        record = LaunchRecord.read(newest)
        if record is not None and record.ending is not None:
            return record.ending
        return "running" if is_running(self.path) else "crashed"

    def launches(self) -> list[tuple[Path, LaunchRecord | None]]:
        """Return the folder and the record of each launch, the oldest first."""
        return [(folder, LaunchRecord.read(folder)) for folder in launches(self.path)]

    def newest(self) -> LaunchRecord | None:
        """Return the record of the newest launch; None where there is none."""
        folder = newest_launch(self.path)
        return None if folder is None else LaunchRecord.read(folder)

    def config(self) -> dict[str, Any]:
        """Return the trial's settings, empty where none were given.

        Raises:
            CodecError: The trial's `config.yaml` cannot be read.
        """
        path = self.path / CONFIG
        if not path.exists():
            return {}
        try:
            loaded = unwrap(read(path))
        except ConfigError as error:
            raise CodecError(f"{path}: cannot be read: {error}") from error
        if not isinstance(loaded, dict):
            raise CodecError(f"{path}: expected settings, got {type(loaded).__name__}")
        return loaded

    def result(self) -> dict[str, Any]:
        """Return the content of `result.json`, which a run writes at its end; empty before.

        Raises:
            CodecError: The file cannot be read.
        """
        try:
            return read_object(self.path / RESULT) or {}
        except CodecError as error:
            raise CodecError(f"{error}: delete it, the next run writes it anew") from error

    def metrics(self) -> dict[str, float]:
        """Return the newest value of each metric of the newest launch, and the trial's `frames`.

        Where the newest launch has written none yet, they are those of the one before.

        Raises:
            OSError: A file of metrics cannot be read.
        """
        found = (_newest_values(tail(folder)) for folder in reversed(launches(self.path)))
        return next(filter(None, found), {})


def trials(project: Path) -> list[Trial]:
    """Return the trials of a project, by name.

    Raises:
        NotFoundError: There is no such folder.
    """
    if not project.is_dir():
        raise NotFoundError(f"project: no folder {project}: name it with --project")
    return [Trial(folder) for folder in _folders(project)]


def remove(trial: Trial) -> None:
    """Delete a trial's folder.

    Raises:
        AlreadyExistsError: A process runs the trial.
        BrayError: It is a link, or a part cannot be deleted; names what is left.
    """
    if trial.path.is_symlink():
        raise BrayError(
            f"trial {trial.path}: is a link to {trial.path.resolve()}: delete that trial by its "
            "own folder, and the link as any file"
        )
    handle = lock_trial(trial.path)
    try:
        # Away at once: who launches a trial of this name meanwhile makes a new folder.
        leaving = Path(tempfile.mkdtemp(dir=trial.path.parent, prefix=f".removed-{trial.name}-"))
        trial.path.rename(leaving)
        shutil.rmtree(leaving)
    except OSError as error:
        raise BrayError(f"trial {trial.path}: cannot be deleted: {error}") from error
    finally:
        os.close(handle)


def clone(trial: Trial, name: str, *, checkpoint: bool = False) -> Trial:
    """Make a trial beside another, with its settings.

    Args:
        trial: Trial to copy.
        name: Name of the new trial.
        checkpoint: Whether to copy what a launch goes on from, too: checkpoints, versions of
            models, replays, leagues. Without it the new trial begins afresh.

    Raises:
        ConfigError: The name is not one folder name.
        AlreadyExistsError: The name is taken, or `checkpoint` is asked of a trial that runs.
        CodecError: The trial's settings cannot be read.
        BrayError: It cannot be copied, or the folder beside it cannot be written.
    """
    check_name(name)
    trial.config()
    target = trial.path.parent / name
    taken = AlreadyExistsError(f"trial: {target} exists already: choose another name")
    if target.exists():
        raise taken
    try:
        _clone(trial, target, checkpoint=checkpoint)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            raise taken from error  # made meanwhile
        raise BrayError(f"trial {trial.path}: cannot be cloned: {error}") from error
    return Trial(target)


def _clone(trial: Trial, target: Path, *, checkpoint: bool) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".cloned-{target.name}-") as folder:
        new = Path(folder) / "new"
        (new / "launches").mkdir(parents=True)
        if (trial.path / CONFIG).exists():
            shutil.copyfile(trial.path / CONFIG, new / CONFIG)
        if checkpoint:
            handle = lock_trial(trial.path)
            try:
                _copy_state(trial.path, new)
            finally:
                os.close(handle)
        new.rename(target)


def _copy_state(source: Path, target: Path) -> None:
    for name in _RESUMED:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, ignore=_NOT_RESUMED)
    for file in source.glob("*.json"):
        if file.name not in (RESULT, NOTES):
            shutil.copyfile(file, target / file.name)


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by their dotted names."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _folders(project: Path) -> list[Path]:
    if not project.is_dir():
        return []
    return sorted(path for path in project.iterdir() if path.name[0] != "." and _is_trial(path))


def _is_trial(path: Path) -> bool:
    return (path / "launches").is_dir()


def _newest_values(rows: list[Row]) -> dict[str, float]:
    """Return the newest value of each metric."""
    values: dict[str, float] = {}
    for row in rows:
        values |= {name: value for name, value in row.values.items() if value is not None}
        values["frames"] = row.frames
    return values
