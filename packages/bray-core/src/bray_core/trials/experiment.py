"""Experiment folders: everything a trial writes lies below `project/trial/`.

    config.yaml     bray.log     checkpoints/     models/<name>/     buffers/     episodes/
    launches/<time>/             the record of a launch (`bray_core.trials.launch_record`), its
                                 metrics

A trial that exists is resumed; two launches of one trial at a time are refused by a lock that
dies with its process. Other settings take the place of the trial's own once the launch goes on from
what it resumed (`Experiment.settle`): one that fails before leaves the trial as it was.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from bray_core.config import to_mapping
from bray_core.errors import AlreadyExistsError, BrayError, CodecError, ConfigError
from bray_core.files.saved_file import remove_abandoned, write_atomic
from bray_core.files.saved_folder import remove_abandoned_folders
from bray_core.files.trial_folders import BEFORE, CONFIG, newest_launch
from bray_core.trials.launch_record import RECORD, LaunchRecord
from bray_core.trials.trial_lock import lock_trial
from bray_core.trials.trial_log import TrialLog

logger = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_FOLDERS = ("checkpoints", "models", "buffers", "episodes", "launches")


class Experiment:
    """A launch of a trial. Made by `open`."""

    def __init__(
        self, path: Path, launch: Path, record: LaunchRecord, lock: int, log: TrialLog
    ) -> None:
        self.path = path
        self.launch = launch
        self.record = record
        self.models = path / "models"
        self.checkpoints = path / "checkpoints"
        self._lock = lock
        self.log = log
        """The trial's `bray.log`."""
        self.is_settled = False
        """Whether the trial has this launch's settings."""
        self._settling = threading.Lock()

    @classmethod
    def open(cls, project: Path, trial: str, config: Mapping[str, Any] | None = None) -> Experiment:
        """Create or reopen a trial and begin a launch.

        Args:
            project: Folder of the project; made if it is absent.
            trial: Name of the trial's folder: letters, digits, `.`, `_`, `-`.
            config: Settings. They are written to the launch's `config.yaml` now, and to the trial's
                by `settle`, or now if it has none. None leaves the trial's as they are.

        Raises:
            ConfigError: The name is not one folder name, or the folder cannot be made.
            AlreadyExistsError: Another process runs this trial.
        """
        check_name(trial)
        path = Path(project).absolute() / trial  # workers have a working directory of their own
        text = None if config is None else _to_yaml(config)
        seed = (config or {}).get("seed")
        try:
            for folder in _FOLDERS:
                (path / folder).mkdir(parents=True, exist_ok=True)
            return cls._launch(path, text, seed if isinstance(seed, int) else None)
        except OSError as error:
            raise ConfigError(f"project: cannot write {path}: {error.strerror}") from error

    @classmethod
    def _launch(cls, path: Path, config: str | None, seed: int | None) -> Experiment:
        lock = lock_trial(path)
        try:
            before = newest_launch(path)
            for folder in (path, *path.glob("*/"), *path.glob("checkpoints/*/")):
                remove_abandoned(folder)
            for folder in (*path.glob("models/*/"), *path.glob("models/*/*/")):
                remove_abandoned_folders(folder)
            launch = _new_launch(path / "launches")
            if config is not None:
                has_one = (path / CONFIG).is_file()
                for folder in (launch,) if has_one else (path, launch):
                    write_atomic(folder / CONFIG, config.encode())
            record = LaunchRecord.begin(launch, seed)
            write_atomic(launch / RECORD, record.to_json())
            made = cls(path, launch, record, lock, TrialLog(path / "bray.log"))
        except BaseException:
            os.close(lock)
            raise
        _say_what_crashed(before)
        words = " ".join(record.command)
        logger.info("launch %s begins in process %d: %s", launch.name, record.pid, words)
        return made

    def settle(self) -> None:
        """Make the launch's settings the trial's; a second call is harmless.

        Call it once all parts of the launch are made, or its first step is. Settings that differed
        stay beside the launch's, as `config.before.yaml`. What cannot be written is logged.
        """
        with self._settling:
            if self.is_settled or self._lock < 0:
                return
            self.is_settled = True
            try:
                self._settle()
            except OSError as failure:  # a full disk ends the run, if at all, where it hurts
                logger.warning("%s: cannot be written: %s", self.path / CONFIG, failure)

    def _settle(self) -> None:
        own, trials = self.launch / CONFIG, self.path / CONFIG
        if not own.exists():  # none were given
            return
        settings = own.read_bytes()
        before = trials.read_bytes() if trials.exists() else None
        if before == settings:
            return
        if before is not None:
            write_atomic(self.launch / BEFORE, before)
            logger.info("settings: those of the launches before are in %s", self.launch / BEFORE)
        write_atomic(trials, settings)

    def close(self, error: BaseException | None = None) -> None:
        """Release the trial; a second call is harmless.

        Args:
            error: Error that ends the launch, for its record; None: it has finished.
        """
        if self._lock < 0:
            return
        if error is None:
            self.settle()
        try:
            self.record = self.record.ended(error)
            why = f": {self.record.error}" if self.record.error else ""
            ending = (self.launch.name, self.record.ending, why)
            # An error of ours says what is wrong; of any other it takes the way to it.
            is_told = not isinstance(error, Exception) or isinstance(error, BrayError)
            logger.info("launch %s ends, %s%s", *ending, exc_info=None if is_told else error)
            write_atomic(self.launch / RECORD, self.record.to_json())
        except OSError as failure:  # a full disk must not hide what ended the launch
            logger.warning("%s: cannot be written: %s", self.launch / RECORD, failure)
        finally:
            self.log.close()
            os.close(self._lock)
            self._lock = -1


def check_name(trial: str, setting: str = "trial") -> None:
    """Refuse a name that cannot be a trial's folder.

    Args:
        trial: the name.
        setting: what is told to have that name.

    Raises:
        ConfigError: The name has other characters, or too many.
    """
    if not isinstance(trial, str) or not _NAME.fullmatch(trial):
        raise ConfigError(
            f"{setting}: expected letters, digits, '.', '_' or '-' (100 at most), got {trial!r}"
        )


def _say_what_crashed(before: Path | None) -> None:
    try:
        record = LaunchRecord.read(before) if before is not None else None
    except CodecError as error:  # no reason not to launch
        logger.warning("%s", error)
        return
    if record is not None and record.ending is None:
        logger.warning(
            "the launch before (%s, process %d) was killed: this one goes on from what it had "
            "written",
            before,
            record.pid,
        )


def _to_yaml(config: Mapping[str, Any]) -> str:
    try:
        return yaml.safe_dump(to_mapping(config), sort_keys=False)
    except yaml.YAMLError as error:
        raise ConfigError(f"config: YAML cannot hold it: {error}") from error


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
