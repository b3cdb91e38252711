"""Files that bray saves: written whole, with a format number that newer code still reads."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bray_core.errors import CodecError, FormatError

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}")
_ABANDONED_S = 3600.0


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file whole: a crash leaves the old content or the new one, never a part.

    Who may read it stays as it was; a new file is as any that the process opens (umask).
    """
    temporary = beside(path)
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            if path.exists():
                os.fchmod(file.fileno(), path.stat().st_mode & 0o777)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def beside(path: Path) -> Path:
    """Return a hidden path of no file yet in the folder of a file, to write what replaces it."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}")


def remove_abandoned(folder: Path) -> None:
    """Remove what processes left in a folder that were killed while they wrote a file there."""
    for path in folder.glob(".*"):
        if _TEMPORARY.fullmatch(path.name) and path.is_file() and is_abandoned(path):
            path.unlink(missing_ok=True)


def is_abandoned(path: Path) -> bool:
    """Return whether a file or folder is too old to be one that a living process writes now."""
    try:
        return time.time() - path.stat().st_mtime > _ABANDONED_S
    except FileNotFoundError:  # another process was quicker
        return False


def check_format(path: Path, content: Mapping[str, Any], newest: int) -> int:
    """Return the format number of a file: its entry `format`, or 0 where it has none.

    Args:
        path: The file, for messages.
        content: Content of the file.
        newest: Format number that this code writes; it reads all earlier ones, too.

    Raises:
        FormatError: The number is higher: newer code wrote the file.
        CodecError: The entry is no format number.
    """
    found = content.get("format", 0)
    if isinstance(found, bool) or not isinstance(found, int) or found < 0:
        raise CodecError(f"{path}: format: expected a number from 0, got {found!r}")
    if found > newest:
        raise FormatError(
            f"{path}: has format {found}, this version reads up to {newest}: a newer version of "
            "bray wrote it: use that version or a newer one, or begin another trial"
        )
    return found
