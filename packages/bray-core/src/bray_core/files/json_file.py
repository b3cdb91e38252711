"""Reading JSON files of other programs: one object, bounded in size and depth."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bray_core.errors import CodecError
from bray_core.files.regular_file import Opener, open_regular

MAX_BYTES = 1024 * 1024
_MAX_DEPTH = 32
_BEYOND = 2**1023
"""Numbers from here on are too large for a float."""


def read_object(
    path: Path, opener: Opener = open_regular, max_bytes: int = MAX_BYTES
) -> dict[str, Any] | None:
    """Return the object in a file. Numbers in it may be infinite, or too large for a float.

    Args:
        path: The file; None is returned where there is none.
        opener: Function that opens the file.
        max_bytes: A longer file is refused.

    Raises:
        CodecError: The file cannot be read, is too long, nested too deeply, or holds no object.
    """
    try:
        with opener(path) as file:
            data = file.read(max_bytes + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise CodecError(f"{path}: cannot be read: {error.strerror}") from error
    if len(data) > max_bytes:
        raise CodecError(f"{path}: expected {max_bytes} bytes at most")
    try:
        loaded = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CodecError(f"{path}: not JSON: {error}") from error
    if not isinstance(loaded, dict):
        raise CodecError(f"{path}: expected an object, got {type(loaded).__name__}")
    if is_deeper(loaded, _MAX_DEPTH):
        raise CodecError(f"{path}: nested too deeply, {_MAX_DEPTH} levels at most")
    return loaded


def finite(value: Any) -> float | None:
    """Return a value as a float; None where it is no number, infinite or too large."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if -_BEYOND < value < _BEYOND else None


def is_deeper(loaded: Any, levels: int) -> bool:
    """Return whether dicts and lists are nested deeper than `levels`."""
    level: list[Any] = [loaded] if isinstance(loaded, dict | list) else []
    for _ in range(levels):
        level = [child for one in level for child in _children(one)]
    return bool(level)


def _children(node: Any) -> Iterable[Any]:
    children: Iterable[Any] = node.values() if isinstance(node, dict) else node
    return [child for child in children if isinstance(child, dict | list)]
