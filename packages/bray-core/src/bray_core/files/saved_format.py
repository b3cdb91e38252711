"""Format numbers of saved files: newer code reads older files, never the reverse."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bray_core.errors import CodecError, FormatError


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
