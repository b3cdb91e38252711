"""Delta encoding of a session's ticks: bodies that change little cost little.

One zstd stream runs for the life of a session and is flushed at each tick, so that repeated parts
of earlier bodies are not sent again. It works on bytes, so it is exact for every dtype. An encoded
body:

    kind u8   counter u32   raw length u32   data          (little-endian)

    0 raw    data is the body as it is; it ends the stream
    1 key    a zstd stream begins here; data is its first part, flushed
    2 after  the same, with the body before, which was raw, as the stream's prefix
    3 next   data is the next part of the stream

The counter goes up by one with each body, modulo 2**32; 2 and 3 must follow the body before. An
encoded body is never longer than the raw one plus these 9 bytes. Why zstd, and what it costs:
`docs/decisions/0003-delta-encoding.md`.
"""

from __future__ import annotations

import struct
import sys
from typing import Any

from bray_core.errors import CodecError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

HEADER = struct.Struct("<BII")
RAW, KEY, AFTER, NEXT = range(4)
_MASK = 0xFFFFFFFF
_LEVEL = 1
_MIN_WINDOW_LOG, _MAX_WINDOW_LOG = 10, 21
"""Bounds of the window: the stream remembers 2**window_log bytes, 1 KB to 2 MB a session."""
_MAX_PAUSE = 64
"""Number of bodies that are sent raw before an incompressible session is tried again."""
_MIN_PREFIX_BYTES = 8
"""Shortest dictionary of zstd; a shorter body is not worth a stream either."""


class DeltaEncoder:
    """Encodes the bodies of one session, one after the other.

    Args:
        max_body_bytes: A longer body is refused.
    """

    def __init__(self, max_body_bytes: int) -> None:
        self._max_body = max_body_bytes
        self._stream: Any = None
        self._window_bytes = 0
        self._raw_before = b""  # the body before, if it was sent raw
        self._counter = 0
        self._pause = 0  # doubles each time that a difference was no smaller than the body
        self._skip = 0

    def reset(self) -> None:
        """Begin anew, as the other side may have lost a body."""
        self._stream = None
        self._raw_before = b""

    def encode(self, body: bytes) -> bytes:
        """Return the encoded body.

        Raises:
            CodecError: The body is too long.
        """
        size = len(body)
        if size > self._max_body:
            raise CodecError(f"delta: a body of {size} bytes exceeds the limit of {self._max_body}")
        self._counter = (self._counter + 1) & _MASK
        if self._skip or size < _MIN_PREFIX_BYTES:
            self._skip = max(self._skip - 1, 0)
            return self._raw(body)
        kind = NEXT
        if self._stream is None or size > self._window_bytes:
            kind = AFTER if self._raw_before else KEY
            self._begin(size)
        data: bytes = self._stream.compress(body, self._stream.FLUSH_BLOCK)
        if len(data) < size:
            if kind != KEY:
                self._pause = 0
            return HEADER.pack(kind, self._counter, size) + data
        if kind != KEY:  # not even the difference is smaller
            self._pause = self._skip = min(2 * self._pause or 1, _MAX_PAUSE)
        return self._raw(body)

    def _begin(self, size: int) -> None:
        """Begin a stream whose window spans this body and the one before."""
        window_log = min(max((2 * size).bit_length(), _MIN_WINDOW_LOG), _MAX_WINDOW_LOG)
        self._window_bytes = 1 << window_log
        parameter = zstd.CompressionParameter
        self._stream = zstd.ZstdCompressor(
            options={parameter.compression_level: _LEVEL, parameter.window_log: window_log},
            zstd_dict=_prefix(self._raw_before),
        )
        self._raw_before = b""

    def _raw(self, body: bytes) -> bytes:
        self._stream = None
        self._raw_before = body if len(body) >= _MIN_PREFIX_BYTES else b""
        return HEADER.pack(RAW, self._counter, len(body)) + body


class DeltaDecoder:
    """Decodes the bodies of one `DeltaEncoder`.

    Args:
        max_body_bytes: A longer body is refused before it is decoded.
    """

    def __init__(self, max_body_bytes: int) -> None:
        self._max_body = max_body_bytes
        self._stream: Any = None
        self._raw_before = b""
        self._counter = 0

    def decode(self, data: bytes) -> bytes:
        """Return the body.

        Raises:
            CodecError: The data is broken, or an earlier body is missing: the encoder must
                `reset`.
        """
        if len(data) < HEADER.size:
            raise CodecError(f"delta: expected {HEADER.size} bytes or more, got {len(data)}")
        kind, counter, size = HEADER.unpack_from(data)
        if size > self._max_body:
            raise CodecError(f"delta: a body of {size} bytes exceeds the limit of {self._max_body}")
        stream, before = self._stream, self._raw_before
        self._stream, self._raw_before = None, b""  # an error ends the stream
        follows = counter == (self._counter + 1) & _MASK
        self._counter = counter
        if kind == RAW:
            if len(data) != HEADER.size + size:
                raise CodecError(f"delta: expected {size} raw bytes, got {len(data) - HEADER.size}")
            body = data[HEADER.size :]
            self._raw_before = body if size >= _MIN_PREFIX_BYTES else b""
            return body
        if kind == KEY:
            stream = _stream(b"")
        elif kind == AFTER and follows and before:
            stream = _stream(before)
        elif kind > NEXT:
            raise CodecError(f"delta: expected a kind of 0 to 3, got {kind}")
        elif kind == AFTER or stream is None or not follows:
            raise CodecError(f"delta: what body {counter} builds upon is not here: send a key")
        body = _decompress(stream, data[HEADER.size :], size)
        self._stream = stream
        return body


def _stream(prefix: bytes) -> Any:
    limit: dict[int, int] = {zstd.DecompressionParameter.window_log_max: _MAX_WINDOW_LOG}
    return zstd.ZstdDecompressor(zstd_dict=_prefix(prefix), options=limit)


def _prefix(body: bytes) -> Any:
    return zstd.ZstdDict(body, is_raw=True).as_prefix if body else None


def _decompress(stream: Any, data: bytes, size: int) -> bytes:
    """Return exactly `size` bytes; never holds more, whatever the data would expand to."""
    try:
        body: bytes = stream.decompress(data, max_length=size + 1)
    except (zstd.ZstdError, EOFError) as error:
        raise CodecError(f"delta: not the next part of a zstd stream: {error}") from error
    if len(body) != size or stream.eof or not stream.needs_input:
        raise CodecError(f"delta: expected data of a body of {size} bytes, got another length")
    return body
