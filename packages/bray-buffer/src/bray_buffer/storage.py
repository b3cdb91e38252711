"""Segments on disk: a JSON line that describes the layout, then the raw blocks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from bray_core.errors import NotFoundError, SpecError
from bray_core.experiment import write_atomic
from bray_core.layout import Block, Layout, Packed

_FORMAT = 1


def save(path: Path, layout: Layout, blocks: Block) -> None:
    """Write blocks `[B, nbytes]` to a file, whole or not at all."""
    header = {
        "format": _FORMAT,
        "layout": layout.id,
        "leaves": layout.describe(),
        "count": len(blocks),
    }
    write_atomic(path, json.dumps(header).encode() + b"\n" + blocks.tobytes())


def load(path: Path, layout: Layout) -> Packed:
    """Read what `save` wrote.

    Raises:
        NotFoundError: there is no such file.
        SpecError: the file is cut off, no such file at all, or holds another layout.
    """
    try:
        line, _, raw = path.read_bytes().partition(b"\n")
    except FileNotFoundError:
        raise NotFoundError(f"path: no file {path}") from None
    try:
        header = json.loads(line)
        found, count = str(header["layout"]), int(header["count"])
    except (ValueError, KeyError, TypeError) as error:
        raise SpecError(f"{path}: not a saved buffer: {error}") from error
    if found != layout.id:
        raise SpecError(f"{path}: holds segments of layout {found}, expected {layout.id}")
    if len(raw) != count * layout.nbytes:
        raise SpecError(
            f"{path}: {count} segments need {count * layout.nbytes} bytes, got {len(raw)}"
        )
    return Packed(layout, np.frombuffer(raw, np.uint8).reshape(count, layout.nbytes))
