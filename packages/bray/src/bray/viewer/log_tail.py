"""`bray.log` from its end: the newest records of a level, however long the file has grown."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, BinaryIO

FILE = "bray.log"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_BLOCK_BYTES = 64 * 1024
_MAX_SCAN_BYTES = 4 * 1024 * 1024
"""Looked through for one answer; the next one goes on from there."""
_MAX_TEXT = 8 * 1024
_HEAD = re.compile(
    rb"(?P<at>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[,.]\d+) (?P<level>[A-Z]+) "
    rb"(?:(?P<component>[^\s:/]+/\d+) )?(?P<name>[^\s:]+): "
)


def before(trial: Path, *, level: str, limit: int, end: int | None = None) -> dict[str, Any]:
    """Return the newest records of a level or above that begin before a byte of the file.

    Args:
        trial: its folder.
        level: of `LEVELS`.
        limit: records at most.
        end: byte; None: the file's end.

    Returns:
        `{"records": [{at, level, component, name, text}], "start", "end"}`, the oldest first.
        `start` is where an earlier page ends, 0 at the file's beginning; `end` is where `after`
        goes on.
    """
    try:
        with (trial / FILE).open("rb") as file:
            start = stop = _last_newline(file) if end is None else max(end, 0)
            data, found = b"", list[dict[str, Any]]()
            while start > 0 and len(found) < limit and stop - start < _MAX_SCAN_BYTES:
                step = min(max(_BLOCK_BYTES, len(data)), start)
                start -= step
                file.seek(start)
                data = file.read(step) + data
                found = [r for r in _records(data, start) if _is_at_least(r, level)]
            if start > 0 and (first := _first_head(data)) is not None:
                start += first  # what stands before belongs to a record that began earlier
            found = found[-limit:]
            if len(found) == limit:
                start = found[0]["offset"]
    except FileNotFoundError:
        return {"records": [], "start": 0, "end": 0}
    return {"records": found, "start": start, "end": stop}


def after(trial: Path, *, level: str, limit: int, start: int) -> dict[str, Any]:
    """Return what was written since byte `start`; of much, the newest. As `before`.

    A file that has become shorter is another one: it is read from its end.
    """
    try:
        size = (trial / FILE).stat().st_size
        if size < start or size - start > _MAX_SCAN_BYTES:
            return before(trial, level=level, limit=limit)
        with (trial / FILE).open("rb") as file:
            file.seek(start)
            data = file.read(_MAX_SCAN_BYTES)
    except FileNotFoundError:
        return {"records": [], "start": 0, "end": 0}
    whole = data[: data.rfind(b"\n") + 1]
    found = [record for record in _records(whole, start) if _is_at_least(record, level)]
    return {"records": found[-limit:], "start": start, "end": start + len(whole)}


def _last_newline(file: BinaryIO) -> int:
    """Return where the last whole line ends."""
    size = file.seek(0, os.SEEK_END)
    begin = max(0, size - _BLOCK_BYTES)
    file.seek(begin)
    return begin + file.read().rfind(b"\n") + 1


def _records(data: bytes, start: int) -> list[dict[str, Any]]:
    """Split into records: a line without a head belongs to the one before, such as a traceback."""
    found: list[dict[str, Any]] = []
    offset = start
    for line in data.splitlines(keepends=True):
        head = _HEAD.match(line)
        if head is not None:
            parts = {name: _text(part or b"") for name, part in head.groupdict().items()}
            found.append({"offset": offset, **parts, "text": _text(line[head.end() :]).rstrip()})
        elif found and len(found[-1]["text"]) < _MAX_TEXT:
            found[-1]["text"] += "\n" + _text(line).rstrip("\r\n")
        offset += len(line)
    return found


def _first_head(data: bytes) -> int | None:
    offset = 0
    for line in data.splitlines(keepends=True):
        if _HEAD.match(line):
            return offset
        offset += len(line)
    return None


def _text(data: bytes) -> str:
    return data[:_MAX_TEXT].decode(errors="replace")


def _is_at_least(record: dict[str, Any], level: str) -> bool:
    known = record["level"] in LEVELS
    return not known or LEVELS.index(record["level"]) >= LEVELS.index(level)
