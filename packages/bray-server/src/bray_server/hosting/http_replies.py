"""Status lines and headers of HTTP replies."""

from __future__ import annotations

import time
from email.utils import formatdate
from http import HTTPStatus

from bray_core.errors import ServiceError
from bray_server.sessions.error_codes import MethodNotAllowedError

_RETRY_LATER = ("too_many_sessions", "overloaded", "draining", "not_ready")
BYTES = b"application/octet-stream"
_second = 0
_heads: dict[tuple[int, bytes], bytes] = {}
_bytes_heads: dict[int, bytes] = {}
_bytes_heads_until = 0.0
"""Time by `time.monotonic` from which they would tell a second that is over."""


def reply_head(status: int, content_type: bytes) -> bytes:
    """Return the status line and the headers that every reply of this second has."""
    global _second
    now = int(time.time())
    if now != _second:
        _second = now
        _heads.clear()
    head = _heads.get((status, content_type))
    if head is None:
        head = b"HTTP/1.1 %d %b\r\nDate: %b\r\nContent-Type: %b\r\n" % (
            status,
            HTTPStatus(status).phrase.encode(),
            formatdate(now, usegmt=True).encode(),
            content_type,
        )
        _heads[status, content_type] = head
    return head


def bytes_head(size: int, now: float) -> bytes:
    """Return all that comes before the body of a good reply to a step.

    Args:
        size: Length of the body: short ones repeat.
        now: Time by `time.monotonic`, which is at hand.
    """
    global _bytes_heads_until
    if now >= _bytes_heads_until:
        _bytes_heads.clear()
        _bytes_heads_until = now + 1.0 - time.time() % 1.0
    head = _bytes_heads.get(size)
    if head is None:
        head = b"%bContent-Length: %d\r\n\r\n" % (reply_head(200, BYTES), size)
        _bytes_heads[size] = head
    return head


def error_headers(error: ServiceError) -> bytes:
    """Return the headers that an error reply has beside those of every reply."""
    if error.code in _RETRY_LATER:
        return b"Retry-After: 1\r\n"
    if error.code == "unauthorized":
        return b"WWW-Authenticate: Bearer\r\n"
    if isinstance(error, MethodNotAllowedError):
        return b"Allow: %b\r\n" % error.allowed.encode()
    return b""
