"""Segments on disk: a JSON line that describes the layout, then the raw blocks."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np

from bray_core.errors import NotFoundError, SpecError
from bray_core.experiment import write_atomic
from bray_core.layout import Block, Layout, Packed

_FORMAT = 1


def save(path: Path, layout: Layout, blocks: Block) -> None:
    """Write blocks `[B, nbytes]` to a file, whole or not at all.

    Raises:
        NotFoundError: there is no such folder.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise NotFoundError(f"path: no folder {path.parent}: make it first")
    header = {
        "format": _FORMAT,
        "layout": layout.id,
        "leaves": _leaves(layout),
        "count": len(blocks),
    }
    write_atomic(path, json.dumps(header).encode() + b"\n" + blocks.tobytes())


def load(path: Path, layout: Layout) -> Packed:
    """Read what `save` wrote.

    Raises:
        NotFoundError: there is no such file.
        SpecError: the file is cut off, not a saved buffer at all, or holds another layout.
    """
    try:
        line, _, raw = Path(path).read_bytes().partition(b"\n")
    except FileNotFoundError:
        raise NotFoundError(f"path: no file {path}") from None
    count = _read_header(path, line, layout)
    if len(raw) != count * layout.nbytes:
        raise SpecError(
            f"{path}: {count} segments need {count * layout.nbytes} bytes, got {len(raw)}"
        )
    return Packed(layout, np.frombuffer(raw, np.uint8).reshape(count, layout.nbytes))


def _read_header(path: Path, line: bytes, layout: Layout) -> int:
    """Return the number of segments."""
    try:
        header = json.loads(line)
        version, found, count = header["format"], header["layout"], int(header["count"])
        leaves = list(header["leaves"])
    except (ValueError, KeyError, TypeError) as error:
        raise SpecError(f"{path}: not a saved buffer: {type(error).__name__}: {error}") from error
    if version != _FORMAT:
        raise SpecError(f"{path}: has format {version}, this version reads {_FORMAT}")
    if found != layout.id:
        pairs = itertools.zip_longest(_leaves(layout), leaves)
        expected, got = next((pair for pair in pairs if pair[0] != pair[1]), (layout.id, found))
        raise SpecError(
            f"{path}: holds segments of layout {found}, expected {layout.id}: "
            f"first leaf that differs: expected {expected}, got {got}"
        )
    return count


def _leaves(layout: Layout) -> list[Any]:
    """Return path, dtype, shape and offset of each leaf, as JSON has them."""
    leaves: list[Any] = json.loads(json.dumps(layout.describe()))
    return leaves
