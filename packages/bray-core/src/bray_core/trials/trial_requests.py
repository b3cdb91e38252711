"""Requests to a running trial: files in its folder that the run takes away as it heeds them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from bray_core.errors import BrayError, NotFoundError
from bray_core.trials.trial import Trial

TrialRequest: TypeAlias = Literal["evaluate", "checkpoint"]


def ask(trial: Path, what: TrialRequest) -> None:
    """Ask the run of a trial for an evaluation or a checkpoint, which it makes after this turn.

    Raises:
        OSError: the folder cannot be written.
    """
    _file(trial, what).touch()


def is_asked(trial: Path, what: TrialRequest) -> bool:
    """Return whether a request waits to be heeded."""
    return _file(trial, what).exists()


def take(trial: Path, what: TrialRequest) -> bool:
    """Return whether a request waits, and take it away."""
    try:
        _file(trial, what).unlink()
    except OSError:  # FileNotFoundError almost always, in microseconds
        return False
    return True


def forget(trial: Path) -> None:
    """Take away all requests: those to a run that has ended are not for the next."""
    for what in get_args(TrialRequest):
        take(trial, what)


def stop(trial: Trial) -> None:
    """End the run of a trial as Ctrl-C does: it saves a checkpoint, from which it can go on.

    Raises:
        NotFoundError: it is not running.
        BrayError: it runs on another machine, or belongs to another user.
    """
    record = trial.newest() if trial.state == "running" else None
    if record is None:
        raise NotFoundError(f"trial {trial.path}: is not running")
    if record.host != socket.gethostname():
        raise BrayError(f"trial {trial.path}: runs on {record.host}: stop it there")
    try:
        with contextlib.suppress(ProcessLookupError):  # it has ended this moment
            os.kill(record.pid, signal.SIGTERM)
    except PermissionError as error:
        raise BrayError(f"trial {trial.path}: process {record.pid} is another user's") from error


def _file(trial: Path, what: TrialRequest) -> Path:
    return trial / f".{what}-request"
