"""Opening files that somebody else may have put there: only regular ones, without waiting.

A named pipe in the place of a file would hold its reader until somebody writes into it, a device
might do anything, and a link may lead to a file that its reader was never meant to show.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, TypeAlias

from bray_core.errors import RefusedFileError

Opener: TypeAlias = Callable[[Path], BinaryIO]
"""Function that opens a file for reading, as `open_regular` does."""

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


def open_regular(path: str | Path, *, inside: Sequence[Path] = ()) -> BinaryIO:
    """Open a file for reading, at once or not at all.

    Args:
        path: The file; links are followed.
        inside: Folders of which one must hold the file that all links lead to; without any, the
            file may lie anywhere.

    Raises:
        RefusedFileError: The file is no regular one, or a link leads out of the folders.
        OSError: The file cannot be opened; FileNotFoundError where there is none.
    """
    flags, found = _FLAGS, Path(path)
    if inside:
        found = resolve_inside(path, inside)
        flags |= os.O_NOFOLLOW  # no link may take its place meanwhile
    _refuse_irregular(path, os.stat(found))  # before it is opened: that alone can move a device
    handle = os.open(found, flags)
    try:
        _refuse_irregular(path, os.fstat(handle))
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_regular(path: str | Path, max_bytes: int, *, inside: Sequence[Path] = ()) -> bytes:
    """Return the bytes of a file, `max_bytes` at most, that is opened by `open_regular`.

    Raises:
        RefusedFileError: `open_regular` refuses it, or the file is longer.
        OSError: The file cannot be read.
    """
    with open_regular(path, inside=inside) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise refused(path, f"expected {max_bytes} bytes at most")
    return data


def resolve_inside(path: str | Path, inside: Sequence[Path]) -> Path:
    """Return where all links of a path lead to.

    Args:
        path: A file or folder that exists.
        inside: Folders of which one must hold it.

    Raises:
        RefusedFileError: The path leads out of the folders.
        OSError: There is no such file, or its links go round in circles.
    """
    found = Path(os.path.realpath(path, strict=True))
    if not any(found.is_relative_to(os.path.realpath(folder)) for folder in inside):
        raise refused(path, f"a link leads out of {inside[0]}: put the file itself there")
    return found


def refused(path: str | Path, reason: str) -> RefusedFileError:
    """Return the error that says why a file is not read."""
    error = RefusedFileError(f"{path}: {reason}")
    error.strerror = reason
    return error


def _refuse_irregular(path: str | Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise refused(path, f"expected a regular file, got {kind}")
