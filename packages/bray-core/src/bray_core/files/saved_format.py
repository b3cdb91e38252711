"""Format numbers of what is saved: later code reads what earlier code wrote, never the reverse."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bray_core.errors import CodecError, FormatError


def check_format(path: Path, content: Mapping[str, Any], newest: int) -> int:
    """Return the format number of what a file holds: its `format`, or 0 where it has none.

    Args:
        path: the file, for messages.
        content: what was read from it.
        newest: number that this code writes; it reads those before, too.

    Raises:
        FormatError: the number is higher: newer code wrote the file.
        CodecError: it is no format number.
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
