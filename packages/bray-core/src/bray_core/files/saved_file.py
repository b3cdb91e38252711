"""Files that bray saves: written whole, with a format number that newer code still reads."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bray_core.errors import CodecError, FormatError


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file whole: a crash leaves the old content or the new one, never a part."""
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
