"""Records of `bray.log` from its end: the newest of a level, however long the file has grown."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TypedDict

from bray.viewer.trial_file import open_file

FILE = "bray.log"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_NUMBERS = {level.encode(): number for number, level in enumerate(LEVELS)}
_BLOCK_BYTES = 64 * 1024
_MAX_SCAN_BYTES = 4 * 1024 * 1024
"""Bytes that one answer looks through; the next answer goes on from there."""
_MAX_TEXT = 8 * 1024
_MAX_PAGE_TEXT = 1024 * 1024
"""Characters of all records of one answer."""
_HEAD = re.compile(
    rb"(?m)^(?P<at>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[,.]\d+) (?P<level>[A-Z]+) "
    rb"(?:(?P<component>[^\s:/]+/\d+) )?(?P<name>[^\s:]+): "
)


class LogRecord(TypedDict):
    """One record of the log."""

    offset: int
    """Byte of the file at which it begins."""
    at: str
    level: str
    component: str
    name: str
    text: str


def before(trial: Path, *, level: str, limit: int, end: int | None = None) -> dict[str, object]:
    """Return the newest records of a level or above that begin before a byte of the file.

    Args:
        trial: folder of the trial.
        level: one of `LEVELS`.
        limit: greatest number of records.
        end: byte of the file before which a record begins; None: the file's end.

    Returns:
        `{"records": [{at, level, component, name, text}], "start", "end"}`, the oldest first.
        `start` is where an earlier page ends, 0 at the file's beginning; `end` is where `after`
        goes on.
    """
    try:
        with open_file(trial, trial / FILE) as file:
            start = stop = _last_newline(file) if end is None else max(end, 0)
            data, found = b"", list[LogRecord]()
            while start > 0 and len(found) < limit and stop - start < _MAX_SCAN_BYTES:
                step = min(max(_BLOCK_BYTES, len(data)), start)
                start -= step
                file.seek(start)
                data = file.read(step) + data  # blocks double: a level that is rare is far back
                found = list(_records(data, start, level))
            if start > 0 and (first := _HEAD.search(data)) is not None:
                start += first.start()  # what stands before belongs to an earlier record
            shown = _newest(found, limit)
            if len(shown) == limit or len(shown) < len(found):
                start = shown[0]["offset"]
    except OSError:
        return {"records": [], "start": 0, "end": 0}
    return {"records": shown, "start": start, "end": stop}


def after(trial: Path, *, level: str, limit: int, start: int) -> dict[str, object]:
    """Return the newest records that were written since byte `start`, in the form of `before`.

    A file that has become shorter is another one, and is read from its end.
    """
    try:
        with open_file(trial, trial / FILE) as file:
            size = file.seek(0, os.SEEK_END)
            if size < start or size - start > _MAX_SCAN_BYTES:
                return before(trial, level=level, limit=limit)
            file.seek(start)
            data = file.read(_MAX_SCAN_BYTES)
    except OSError:
        return {"records": [], "start": 0, "end": 0}
    whole = data[: data.rfind(b"\n") + 1]
    found = list(_records(whole, start, level))
    return {"records": _newest(found, limit), "start": start, "end": start + len(whole)}


def _last_newline(file: BinaryIO) -> int:
    """Return where the last whole line ends."""
    size = file.seek(0, os.SEEK_END)
    begin = max(0, size - _BLOCK_BYTES)
    file.seek(begin)
    return begin + file.read().rfind(b"\n") + 1


def _records(data: bytes, start: int, level: str) -> Iterator[LogRecord]:
    """Yield the records of a level or above.

    A line without a head, such as one of a traceback, belongs to the record before.
    """
    heads = list(_HEAD.finditer(data))
    ends = [*(head.start() for head in heads), len(data)][1:]
    for head, end in zip(heads, ends, strict=True):
        if _is_at_least(head["level"], level):
            text = _text(data[head.end() : min(end, head.end() + _MAX_TEXT)])
            yield {
                "offset": start + head.start(),
                "at": _text(head["at"]),
                "level": _text(head["level"]),
                "component": _text(head["component"] or b""),
                "name": _text(head["name"]),
                "text": text.replace("\r\n", "\n").rstrip(),
            }


def _newest(found: list[LogRecord], limit: int) -> list[LogRecord]:
    """Return the newest records that fit into one answer: at least one, where there is any."""
    shown: list[LogRecord] = []
    left = _MAX_PAGE_TEXT
    for record in reversed(found[-limit:]):
        left -= len(record["text"])
        if left < 0 and shown:
            break
        shown.append(record)
    return shown[::-1]


def _text(data: bytes) -> str:
    return data[:_MAX_TEXT].decode(errors="replace")


def _is_at_least(level: bytes, least: str) -> bool:
    number = _NUMBERS.get(level)
    return number is None or number >= LEVELS.index(least)
