"""The head of a connection's last request, so that the same bytes need not be parsed again."""

from __future__ import annotations

from bray_server.hosting.http_request import HttpRequest
from bray_server.limits.byte_budget import UNCOUNTED_BYTES
from bray_server.sessions.pages import PageRequest

_END = b"\r\n\r\n"
_MAX_HEAD_BYTES = 1024
"""Longest head that is kept: there may be thousands of connections."""


class RepeatedHead:
    """A head as it came, and what the parser made of it.

    A client sends a session's ticks with the same head, byte for byte, as long as their bodies are
    of one size. All that the parser tells of a request follows from the bytes of its head.

    Args:
        data: The bytes of the head, with the empty line that ends it.
        request: The request that it began.
    """

    __slots__ = (
        "data",
        "is_direct",
        "is_json",
        "is_known",
        "kind",
        "num_bytes",
        "num_head_bytes",
        "page",
        "request",
        "session",
    )

    def __init__(self, data: bytes, request: HttpRequest) -> None:
        self.data = data
        self.request = request.again(b"", 0.0)
        """The request, without its body."""
        self.num_head_bytes = len(data)
        self.num_bytes = len(data) + request.length
        """Length of a whole request with this head."""
        self.is_known = False
        """Whether it is known what the request asks for: what follows here is right."""
        self.kind: int | None = None
        """Kind of the step, or PAGE; None: it is looked at anew each time."""
        self.session = b""
        self.page: PageRequest | None = None
        """The page that is asked for, without the body."""
        self.is_json = False
        self.is_direct = False
        """Whether it may be answered by `DirectTicks`."""


def head_of(data: bytes, request: HttpRequest) -> RepeatedHead | None:
    """Return the head of the request that a connection has just parsed; None: it is to be parsed
    anew each time.

    Args:
        data: The bytes from the end of the request before to the end of this one.
        request: What the parser made of them.
    """
    num_head_bytes = data.find(_END, 0, _MAX_HEAD_BYTES) + len(_END)
    if (
        num_head_bytes < len(_END)
        or num_head_bytes + request.length != len(data)
        or request.num_bytes != request.length
        or request.length > UNCOUNTED_BYTES
        or request.is_chunked
        or not request.keep_alive
        or request.error is not None
        or b"expect" in request.headers
    ):
        return None
    return RepeatedHead(data[:num_head_bytes], request)
