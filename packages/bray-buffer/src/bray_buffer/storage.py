"""Blocks on disk, written and read as a stream: memory holds one chunk, however large the file.

    header     one line of JSON: `{"format", "layout", "leaves"}`
    chunks     the raw blocks, one after the other
    footer     bray codec: `{"chunks": [[rows, crc32], …], "extra"}`
    trailer    footer's length (u64, little-endian), crc32 of header and footer (u32), `BRAYBUF2`

The footer comes last, since only then is it known what the chunks were. A file without the trailer
was cut off, and nothing of it is read. Each chunk is checked before it is handed out.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import io
import itertools
import json
import os
import struct
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from bray_core import codec
from bray_core.errors import (
    CapacityError,
    CodecError,
    FormatError,
    NotFoundError,
    SpecError,
)
from bray_core.files.saved_file import beside, check_format
from bray_core.layout import Block, Layout

_FORMAT = 2
_MAGIC = b"BRAYBUF2"
_TRAILER = struct.Struct("<QI8s")
_MAX_HEADER_BYTES = 16 * 1024 * 1024
_CHUNK_BYTES = 8 * 1024 * 1024
"""Size of one read or write: large enough for the disk, small beside a batch."""
_YOUNG_S = 60.0
"""Age below which a temporary file stays: another save may be about to lock it."""
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class _Footer(NamedTuple):
    chunks: list[tuple[int, int]]
    extra: dict[str, Any]
    start: int
    """Where the first chunk begins."""


def save(
    path: Path, layout: Layout, chunks: Iterable[Block], extra: Mapping[str, Any] | None = None
) -> int:
    """Write blocks to a file, whole or not at all, and return how many there were.

    Args:
        path: Path of the file; an existing one is replaced.
        layout: Packed layout of the blocks.
        chunks: Blocks `[B, nbytes]`, asked for one by one and not kept. Large ones are written in
            pieces of 8 MiB; better do not give tiny ones.
        extra: Small values that are kept beside them: numbers, strings, arrays, lists, dicts.

    Raises:
        NotFoundError: the folder is missing.
        CapacityError: the disk is full; the file is as it was before.
        CodecError: a value in `extra` cannot be written.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise NotFoundError(f"path: no folder {path.parent}: make it first")
    header = {"format": _FORMAT, "layout": layout.id, "leaves": layout.describe()}
    line = json.dumps(header).encode() + b"\n"
    with _replacing(path) as file:
        file.write(line)
        written = [(len(piece), _write(file, piece)) for piece in _pieces(layout, chunks)]
        footer = codec.encode({"chunks": [list(chunk) for chunk in written], "extra": extra or {}})
        crc = zlib.crc32(footer, zlib.crc32(line))
        file.write(footer + _TRAILER.pack(len(footer), crc, _MAGIC))
    return sum(rows for rows, _ in written)


def _write(file: BinaryIO, piece: Block) -> int:
    file.write(piece.data)
    return zlib.crc32(piece.data)


def _pieces(layout: Layout, chunks: Iterable[Block]) -> Iterator[Block]:
    rows = max(1, _CHUNK_BYTES // layout.nbytes)
    for chunk in chunks:
        for start in range(0, len(chunk), rows):
            piece = chunk[start : start + rows]
            yield piece if piece.flags.c_contiguous else piece.copy()


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that becomes `path` if the block ends well."""
    _remove_left_behind(path.parent, f".{path.name}.")
    temporary = beside(path)
    try:
        with temporary.open("xb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
            file.flush()
            os.fsync(file.fileno())
            temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in _FULL:
            raise CapacityError(
                f"{path}: cannot be written: {error.strerror}: free some space or choose another "
                "folder"
            ) from error
        raise


def _remove_left_behind(folder: Path, prefix: str) -> None:
    """Remove what killed processes left: temporaries that nobody holds the lock of."""
    for left in folder.glob(f"{glob.escape(prefix)}*"):
        with contextlib.suppress(OSError), left.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if time.time() - os.fstat(file.fileno()).st_mtime > _YOUNG_S:
                left.unlink()


def load(path: Path, layout: Layout) -> tuple[int, dict[str, Any], Iterator[Block]]:
    """Read what `save` wrote.

    Returns:
        The number of blocks, `extra`, and an iterator of chunks `[B, nbytes]`. All chunks share
        one memory: each is valid until the next is asked for. A damaged chunk raises SpecError
        when it is asked for.

    Raises:
        NotFoundError: the file is missing.
        FormatError: a newer version of bray wrote the file.
        SpecError: the file is cut off or damaged, no saved buffer, or holds another layout.
    """
    try:
        with Path(path).open("rb") as file:
            footer = _check(path, file, layout)
    except FileNotFoundError:
        raise NotFoundError(f"path: no file {path}") from None
    count = sum(rows for rows, _ in footer.chunks)
    return count, footer.extra, _read_chunks(path, layout, footer)


def _read_chunks(path: Path, layout: Layout, footer: _Footer) -> Iterator[Block]:
    memory = layout.empty(max((rows for rows, _ in footer.chunks), default=0))
    before = 0
    with Path(path).open("rb", buffering=0) as file:
        file.seek(footer.start)
        for rows, crc in footer.chunks:
            chunk = memory[:rows]
            _fill(file, chunk)
            if zlib.crc32(chunk.data) != crc:
                raise SpecError(
                    f"{path}: damaged: its blocks {before} to {before + rows - 1} have another "
                    "checksum than when they were written"
                )
            yield chunk
            before += rows


def _fill(file: io.FileIO, chunk: Block) -> None:
    """Read a chunk; what the file is too short for stays, and has the wrong checksum."""
    left = chunk.data.cast("B")
    while left and (got := file.readinto(left)):
        left = left[got:]


def _check(path: Path, file: BinaryIO, layout: Layout) -> _Footer:
    """Check all but the chunks' content."""
    line = file.readline(_MAX_HEADER_BYTES)
    _check_header(path, line, layout)
    size = file.seek(0, os.SEEK_END)
    file.seek(max(len(line), size - _TRAILER.size))
    trailer = file.read(_TRAILER.size)
    length, crc, magic = _TRAILER.unpack(trailer) if len(trailer) == _TRAILER.size else (0, 0, b"")
    blocks = size - len(line) - length - _TRAILER.size
    if magic != _MAGIC or blocks < 0:
        raise SpecError(f"{path}: cut off: expected {_MAGIC!r} at its end, got {trailer[-8:]!r}")
    file.seek(len(line) + blocks)
    raw = file.read(length)
    if zlib.crc32(raw, zlib.crc32(line)) != crc:
        raise SpecError(f"{path}: damaged: its header or footer has another checksum than written")
    try:
        tree: Any = codec.decode(raw, max_bytes=max(length, 1), trusted=True)
        chunks = [(int(rows), int(crc)) for rows, crc in tree["chunks"]]
    except (CodecError, KeyError, ValueError, TypeError) as error:
        raise SpecError(f"{path}: damaged footer: {type(error).__name__}: {error}") from error
    count = sum(rows for rows, _ in chunks)
    if count * layout.nbytes != blocks:
        raise SpecError(f"{path}: {count} blocks need {count * layout.nbytes} bytes, got {blocks}")
    return _Footer(chunks, tree["extra"], len(line))


def _check_header(path: Path, line: bytes, layout: Layout) -> None:
    try:
        header = json.loads(line)
        if not isinstance(header, dict):
            raise TypeError(f"expected a header, got {type(header).__name__}")
        version = check_format(path, header, _FORMAT)
        if version < _FORMAT:
            raise SpecError(f"{path}: has format {version}, this version reads {_FORMAT}")
        found, leaves = header["layout"], list(header["leaves"])
    except (SpecError, FormatError):
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise SpecError(f"{path}: not a saved buffer: {type(error).__name__}: {error}") from error
    if found != layout.id:
        pairs = itertools.zip_longest(_leaves(layout), leaves)
        expected, got = next((pair for pair in pairs if pair[0] != pair[1]), (layout.id, found))
        raise SpecError(
            f"{path}: holds segments of layout {found}, expected {layout.id}: "
            f"first leaf that differs: expected {expected}, got {got}"
        )


def _leaves(layout: Layout) -> list[Any]:
    """Return path, dtype, shape and offset of each leaf, as JSON has them."""
    leaves: list[Any] = json.loads(json.dumps(layout.describe()))
    return leaves
