"""The binary protocol: frames as bytes, and an incremental parser; see `docs/protocol.md`.

    magic "BRY" + version 1   kind u8   flags u8   session length u16
    request id u32   body length u32   session (UTF-8)   body

All numbers are little-endian. A reply or error carries the request id of what it answers.
"""

from __future__ import annotations

import json
import struct
from enum import IntEnum
from typing import TypeAlias

from bray_core.errors import BrayError
from bray_server.wire.byte_pieces import BytePieces

MAGIC = b"BRY\x01"
HEADER = struct.Struct("<4sBBHII")
DELTA = 0x01
"""Flag: in `start` the client asks for delta encoding, in its reply the server grants it, in
`tick` the body is encoded so (`bray_server.wire.delta`)."""
JSON = 0x02
"""Flag: the body is JSON (under the delta encoding, if it has both flags)."""


class Kind(IntEnum):
    """Kinds of frames."""

    START = 1
    TICK = 2
    END = 3
    CALL = 4
    REPLY = 5
    ERROR = 6
    HELLO = 7
    PING = 8
    PONG = 9


_MIN_KIND, _MAX_KIND = int(min(Kind)), int(max(Kind))
_FLAGS = (
    {int(kind): DELTA | JSON for kind in (Kind.START, Kind.TICK, Kind.REPLY)}
    | {int(kind): JSON for kind in (Kind.END, Kind.CALL)}
)  # fmt: skip
"""Flags that a frame may have, by its kind; others have none."""

_DELTA_HEADER = struct.Struct("<BII")
_DELTA_HEADER_BYTES = _DELTA_HEADER.size
"""Bytes by which an encoded body may be longer than the body itself."""

Frame: TypeAlias = tuple[int, int, int, bytes, bytes]
"""A frame: kind, flags, request id, session, body. A plain tuple: it is made for every tick."""


class FrameError(BrayError):
    """Bytes are no frame, or exceed a limit; `code` goes into the error frame."""

    def __init__(self, code: str, message: str, request_id: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.request_id = request_id


def pack(kind: int, request_id: int, session: str | bytes, body: bytes, flags: int = 0) -> bytes:
    """Return a frame as bytes."""
    name = session.encode() if isinstance(session, str) else session
    return HEADER.pack(MAGIC, kind, flags, len(name), request_id, len(body)) + name + body


def pack_error(request_id: int, session: str | bytes, code: str, message: str) -> bytes:
    """Return an error frame: its body is `{"code", "message"}` as JSON."""
    body = json.dumps({"code": code, "message": message}).encode()
    return pack(Kind.ERROR, request_id, session, body)


def unpack_error(body: bytes) -> tuple[str, str]:
    """Return code and message of an error frame's body, whatever it holds."""
    try:
        error = json.loads(body)
        return str(error["code"]), str(error["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return "bad_frame", f"an error frame without code and message: {body[:100]!r}"


def decoded_bytes(kind: int, flags: int, body: bytes) -> int:
    """Return the length that a body claims to have once it is decoded: that of a tick."""
    if kind != Kind.TICK or not flags & DELTA or len(body) < _DELTA_HEADER.size:
        return len(body)
    _, _, raw_bytes = _DELTA_HEADER.unpack_from(body)
    return max(len(body), int(raw_bytes))


class FrameParser:
    """Cuts a stream of bytes into frames, however it is split.

    Args:
        max_body_bytes: A longer body is refused as soon as its header has come.
        max_session_bytes: A longer session id is refused, too.
    """

    def __init__(self, max_body_bytes: int, max_session_bytes: int) -> None:
        self.max_body_bytes = max_body_bytes
        self._max_session = max_session_bytes
        self._pieces = BytePieces()  # of the frame that is not whole yet
        self._need = HEADER.size
        self.error: FrameError | None = None
        """Error after which nothing more can be read: answer what came before, then close."""

    @property
    def pending_bytes(self) -> int:
        """Number of bytes of the frame that is not whole yet."""
        return self._pieces.size

    @property
    def wanted_bytes(self) -> int:
        """Length of the frame that is not whole yet, or of its header while that is not."""
        return self._need if self._pieces.size else 0

    def feed(self, data: bytes, most: int = 1 << 30) -> list[Frame]:
        """Take bytes and return the frames that are whole; look at `error` after it.

        Args:
            data: Bytes that came.
            most: Number of frames to return; feed no bytes to get those behind them.
        """
        pieces = self._pieces
        if pieces.size:
            pieces.add(data)
            if pieces.size < self._need:
                return []
            data = pieces.take()
        frames: list[Frame] = []
        at, end = 0, len(data)
        self._need = HEADER.size
        while self.error is None and end - at >= HEADER.size and len(frames) < most:
            magic, kind, flags, name_size, request_id, size = HEADER.unpack_from(data, at)
            if (
                magic != MAGIC
                or not _MIN_KIND <= kind <= _MAX_KIND
                or (flags and flags & ~_FLAGS.get(kind, 0))
                or size > self.max_body_bytes + (_DELTA_HEADER_BYTES if flags & DELTA else 0)
                or name_size > self._max_session
            ):
                self.error = self._explain(magic, kind, flags, size, name_size, request_id)
                break
            name_at = at + HEADER.size
            body_at = name_at + name_size
            next_at = body_at + size
            if next_at > end:
                self._need = next_at - at
                break
            frames.append((kind, flags, request_id, data[name_at:body_at], data[body_at:next_at]))
            at = next_at
        if end > at:
            pieces.add(data[at:])
        return frames

    def _explain(
        self, magic: bytes, kind: int, flags: int, size: int, name_size: int, request_id: int
    ) -> FrameError:
        if magic != MAGIC:
            return FrameError("bad_frame", f"expected a frame of magic {MAGIC!r}, got {magic!r}")
        if not _MIN_KIND <= kind <= _MAX_KIND:
            return FrameError("bad_frame", f"expected a kind of 1 to 9, got {kind}", request_id)
        if flags & ~_FLAGS.get(kind, 0):
            known = "1 (delta, in start and tick) and 2 (JSON, in requests)"
            message = f"expected no flags but {known}, got {flags} in kind {kind}"
            return FrameError("bad_frame", message, request_id)
        if size > self.max_body_bytes:
            message = f"a body of {size} bytes exceeds the limit of {self.max_body_bytes}"
            return FrameError("body_too_large", message, request_id)
        message = f"a session id of {name_size} bytes exceeds the limit of {self._max_session}"
        return FrameError("bad_session", message, request_id)
