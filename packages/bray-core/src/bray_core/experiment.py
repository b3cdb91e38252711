"""Experiment folders: everything a trial writes lies below `project/trial/`.

    config.yaml     bray.log     checkpoints/     models/<name>/     buffers/     episodes/
    launches/<time>/             one a launch: its metrics

A trial that exists is resumed; two launches of one trial at a time are refused by a lock that
dies with its process.
"""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from bray_core.config import to_mapping
from bray_core.errors import AlreadyExistsError, ConfigError
from bray_core.trial_log import TrialLog

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_FOLDERS = ("checkpoints", "models", "buffers", "episodes", "launches")


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that a crash leaves the old content or the new, never a part."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


class Experiment:
    """One launch of one trial. Made by `open`."""

    def __init__(self, path: Path, launch: Path, lock: int, log: TrialLog) -> None:
        self.path = path
        self.launch = launch
        self.models = path / "models"
        self.checkpoints = path / "checkpoints"
        self._lock = lock
        self.log = log
        """`bray.log`."""

    @classmethod
    def open(cls, project: Path, trial: str, config: Mapping[str, Any] | None = None) -> Experiment:
        """Create or reopen a trial and begin a launch.

        Args:
            project: folder of the project; made if it is absent.
            trial: one folder name: letters, digits, `.`, `_`, `-`.
            config: written to `config.yaml`; None leaves the file as it is.

        Raises:
            ConfigError: the name is not one folder name, or the folder cannot be made.
            AlreadyExistsError: another process runs this trial.
        """
        if not isinstance(trial, str) or not _NAME.fullmatch(trial):
            raise ConfigError(
                f"trial: expected letters, digits, '.', '_' or '-' (100 at most), got {trial!r}"
            )
        path = Path(project) / trial
        text = None if config is None else _to_yaml(config)
        try:
            for folder in _FOLDERS:
                (path / folder).mkdir(parents=True, exist_ok=True)
            return cls._launch(path, text)
        except OSError as error:
            raise ConfigError(f"project: cannot write {path}: {error.strerror}") from error

    @classmethod
    def _launch(cls, path: Path, config: str | None) -> Experiment:
        lock = _lock(path)
        try:
            if config is not None:
                write_atomic(path / "config.yaml", config.encode())
            return cls(path, _new_launch(path / "launches"), lock, TrialLog(path / "bray.log"))
        except BaseException:
            os.close(lock)
            raise

    def close(self) -> None:
        """Release the trial; again is harmless."""
        if self._lock < 0:
            return
        self.log.close()
        os.close(self._lock)
        self._lock = -1


def _to_yaml(config: Mapping[str, Any]) -> str:
    try:
        return yaml.safe_dump(to_mapping(config), sort_keys=False)
    except yaml.YAMLError as error:
        raise ConfigError(f"config: YAML cannot hold it: {error}") from error


def _lock(path: Path) -> int:
    handle = os.open(path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(handle, 32).decode(errors="replace").strip() or "unknown"
        os.close(handle)
        raise AlreadyExistsError(
            f"trial {path}: already running in process {holder}: "
            "stop that one, or choose another trial name"
        ) from None
    os.ftruncate(handle, 0)
    os.write(handle, str(os.getpid()).encode())
    return handle


def _new_launch(launches: Path) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for number in range(1000):
        launch = launches / (f"{stamp}-{number}" if number else stamp)
        try:
            launch.mkdir()
        except FileExistsError:
            continue
        return launch
    raise AlreadyExistsError(f"launches: 1000 launches in one second below {launches}")
