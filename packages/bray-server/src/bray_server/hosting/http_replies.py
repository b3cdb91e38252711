"""Status lines and headers of HTTP replies."""

from __future__ import annotations

import time
from email.utils import formatdate
from http import HTTPStatus

from bray_core.errors import ServiceError

_RETRY_LATER = ("too_many_sessions", "overloaded", "draining", "not_ready")
_second = 0
_heads: dict[tuple[int, bytes], bytes] = {}


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


def error_headers(error: ServiceError, *, is_step: bool) -> bytes:
    """Return the headers that an error reply has beside those of every reply.

    Args:
        error: The error that is answered.
        is_step: Whether the request was for `/step`.
    """
    if error.code in _RETRY_LATER:
        return b"Retry-After: 1\r\n"
    if error.code == "unauthorized":
        return b"WWW-Authenticate: Bearer\r\n"
    if error.code == "method_not_allowed":
        return b"Allow: POST\r\n" if is_step else b"Allow: GET, HEAD\r\n"
    return b""
