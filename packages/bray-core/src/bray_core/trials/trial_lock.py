"""The lock of a trial: one process at a time holds it, and it ends with the process."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from pathlib import Path

from bray_core.errors import AlreadyExistsError, ConfigError

_FILE = ".lock"
_TRIES = 10
_RETRY_S = 0.02


def lock_trial(path: Path) -> int:
    """Return the descriptor that holds a trial until it is closed.

    Raises:
        AlreadyExistsError: A process holds the trial, or it was removed a moment ago.
        ConfigError: The folder cannot be written.
    """
    try:
        handle = os.open(path / _FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)  # less umask
    except OSError as error:
        raise ConfigError(f"project: cannot write {path}: {error.strerror}") from error
    try:
        _take(handle, path)
        os.ftruncate(handle, 0)
        os.write(handle, f"{os.getpid()} on {socket.gethostname()}".encode())
    except BaseException:
        os.close(handle)
        raise
    return handle


def _take(handle: int, path: Path) -> None:
    for is_last in [False] * _TRIES + [True]:  # who asks `is_running` holds it a moment
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if is_last:
                holder = os.read(handle, 200).decode(errors="replace").strip() or "unknown"
                raise AlreadyExistsError(
                    f"trial {path}: already running in process {holder}: "
                    "stop that one, or choose another trial name"
                ) from None
            time.sleep(_RETRY_S)
    if not os.fstat(handle).st_nlink:
        raise AlreadyExistsError(f"trial {path}: was removed a moment ago: try again")


def is_running(path: Path) -> bool:
    """Return whether a process holds a trial; False where its lock cannot be opened."""
    try:
        handle = os.open(path / _FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
