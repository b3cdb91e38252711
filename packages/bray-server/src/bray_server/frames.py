"""The binary protocol: frames as bytes, and an incremental parser. `docs/protocol.md` is its text.

    magic "BRY" + version 1   kind u8   flags u8   session length u16
    request id u32   body length u32   session (UTF-8)   body

All numbers are little-endian. A reply or error carries the request id of what it answers.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from bray_core.errors import BrayError

MAGIC = b"BRY\x01"
HEADER = struct.Struct("<4sBBHII")


class Kind(IntEnum):
    """What a frame says."""

    START = 1
    TICK = 2
    END = 3
    CALL = 4
    REPLY = 5
    ERROR = 6
    HELLO = 7
    PING = 8
    PONG = 9


_KINDS = frozenset(int(kind) for kind in Kind)


class Frame(NamedTuple):
    """One frame."""

    kind: int
    request_id: int
    session: str
    body: bytes


class FrameError(BrayError):
    """Bytes that are no frame, or one beyond the limits; `code` goes into the error frame."""

    def __init__(self, code: str, message: str, request_id: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.request_id = request_id


def pack(kind: int, request_id: int, session: str, body: bytes) -> bytes:
    """Return a frame as bytes."""
    name = session.encode()
    return HEADER.pack(MAGIC, kind, 0, len(name), request_id, len(body)) + name + body


def pack_error(request_id: int, session: str, code: str, message: str) -> bytes:
    """Return an error frame: its body is `{"code", "message"}` as JSON."""
    body = json.dumps({"code": code, "message": message}).encode()
    return pack(Kind.ERROR, request_id, session, body)


def unpack_error(body: bytes) -> tuple[str, str]:
    """Return code and message of an error frame's body, whatever it holds."""
    try:
        error = json.loads(body)
        return str(error["code"]), str(error["message"])
    except (ValueError, KeyError, TypeError):
        return "bad_frame", f"an error frame without code and message: {body[:100]!r}"


class FrameParser:
    """Cuts a stream of bytes into frames, however it is split.

    Args:
        max_body_bytes: a longer body is refused as soon as its header is there.
        max_session_bytes: likewise for the session id.
    """

    def __init__(self, max_body_bytes: int, max_session_bytes: int) -> None:
        self._max_body = max_body_bytes
        self._max_session = max_session_bytes
        self._buffer = bytearray()

    @property
    def pending_bytes(self) -> int:
        """Bytes of a frame that is not whole yet."""
        return len(self._buffer)

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[Frame]:
        """Take bytes and yield the frames that are whole.

        Raises:
            FrameError: the stream is not this protocol, or a frame is too large. What follows
                cannot be read any more: answer and close.
        """
        buffer = self._buffer
        buffer += data
        at = 0
        try:
            while len(buffer) - at >= HEADER.size:
                magic, kind, flags, name_size, request_id, size = HEADER.unpack_from(buffer, at)
                if magic != MAGIC or kind not in _KINDS or flags:
                    self._refuse(magic, kind, flags, request_id)
                if size > self._max_body or name_size > self._max_session:
                    self._refuse_size(size, name_size, request_id)
                start = at + HEADER.size
                end = start + name_size + size
                if len(buffer) < end:
                    return
                name = _text(bytes(buffer[start : start + name_size]), request_id)
                body = bytes(buffer[start + name_size : end])
                at = end
                yield Frame(kind, request_id, name, body)
        finally:
            if at:
                del buffer[:at]

    def _refuse(self, magic: bytes, kind: int, flags: int, request_id: int) -> None:
        if magic != MAGIC:
            raise FrameError("bad_frame", f"expected a frame of magic {MAGIC!r}, got {magic!r}")
        if flags:
            raise FrameError("bad_frame", f"expected flags 0, got {flags}", request_id)
        raise FrameError("bad_frame", f"expected a kind of 1 to 9, got {kind}", request_id)

    def _refuse_size(self, size: int, name_size: int, request_id: int) -> None:
        if size > self._max_body:
            raise FrameError(
                "body_too_large",
                f"a body of {size} bytes exceeds the limit of {self._max_body}",
                request_id,
            )
        raise FrameError(
            "bad_session",
            f"a session id of {name_size} bytes exceeds the limit of {self._max_session}",
            request_id,
        )


def _text(name: bytes, request_id: int) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise FrameError("bad_session", "the session id is not UTF-8", request_id) from None
