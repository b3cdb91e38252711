"""Files of a folder that others made, opened so that nothing else is read and nothing waits."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

from bray_core.errors import ExportError


def inside(folder: Path, name: str) -> Path:
    """Return the path of a file of a folder, links followed.

    Raises:
        ExportError: The path leads out of the folder.
    """
    root = Path(os.path.realpath(folder))
    path = Path(os.path.realpath(root / name))
    if not path.is_relative_to(root):
        raise ExportError(
            f"{folder / name}: leads out of its folder, to {path}: put the file itself there"
        )
    return path


@contextlib.contextmanager
def open_inside(folder: Path, name: str, max_bytes: int) -> Iterator[BufferedReader]:
    """Open a plain file of a folder for reading; a pipe or a device is never waited for.

    Raises:
        ExportError: The file is absent, no plain file, larger than `max_bytes`, or out of the
            folder.
    """
    path = folder / name
    # Not blocking: to open a named pipe would wait for its writer.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(inside(folder, name), flags)
    except OSError as error:
        raise ExportError(f"{path}: cannot be read ({error.strerror}): copy it again") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise ExportError(f"{path}: expected a plain file, got a folder, pipe or device")
    with open(descriptor, "rb") as file:
        if status.st_size > max_bytes:
            raise ExportError(
                f"{path}: expected at most {max_bytes:,} bytes, got {status.st_size:,}"
            )
        yield file
