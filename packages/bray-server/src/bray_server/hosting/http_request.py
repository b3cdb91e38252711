"""One HTTP request, as it is put together from what the parser reports."""

from __future__ import annotations

import re

from bray_core.errors import ServiceError
from bray_server.wire.byte_pieces import BytePieces

_MAX_ID_BYTES = 128


class HttpRequest:
    """A request with all that has come of it so far."""

    __slots__ = (
        "body", "counted_bytes", "error", "headers", "is_chunked", "is_headed", "is_page",
        "is_plain", "keep_alive", "length", "method", "num_bytes", "num_head_bytes", "pieces",
        "received_s", "speaks_1_0", "url", "wants_body",
    )  # fmt: skip

    def __init__(self, url: bytes) -> None:
        self.url = url
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        """The first part of the body; all of it, unless there are pieces."""
        self.pieces: BytePieces | None = None
        self.num_bytes = 0
        """Number of bytes of the body so far."""
        self.num_head_bytes = 0
        self.length = 0
        self.is_chunked = False
        self.is_headed = False
        """Whether all headers have come: a later one is a trailer."""
        self.wants_body = True
        """Whether somebody wants the body; an unwanted one is read and thrown away."""
        self.counted_bytes = 0
        """Bytes that the request has of the budget of bytes in flight."""
        self.keep_alive = False
        self.speaks_1_0 = False
        """Whether the client speaks HTTP/1.0: it knows no chunks and no interim replies, and is to
        be told that its connection stays open."""
        self.method = b""
        self.error: ServiceError | None = None
        self.is_page = False
        self.is_plain = False
        """Whether bytes answer it that have nothing of their own in the reply's head."""
        self.received_s = 0.0

    def again(self, body: bytes, received_s: float) -> HttpRequest:
        """Return a request with the same head, whole and not answered yet.

        Args:
            body: Body of the other one, of the same length.
            received_s: Time when it was whole, by `time.monotonic`.
        """
        other = HttpRequest(self.url)
        other.headers = self.headers
        other.method = self.method
        other.length = other.num_bytes = self.length
        other.is_headed = True
        other.keep_alive = self.keep_alive
        other.speaks_1_0 = self.speaks_1_0
        other.body = body
        other.received_s = received_s
        return other

    def take_body(self) -> bytes:
        """Return the body, and drop it here."""
        body = self.body if self.pieces is None else self.pieces.take()
        self.body = b""
        return body

    def drop_authority(self) -> None:
        """Keep `/path` of `http://host/path`, as clients of a proxy write it (RFC 9112, 3.2.2)."""
        scheme, found, rest = self.url.partition(b"://")
        if found and scheme.lower() in (b"http", b"https"):
            host = re.match(rb"[^/?#]*", rest)
            assert host is not None
            path = rest[host.end() :]
            self.url = path if path.startswith(b"/") else b"/" + path

    @property
    def path(self) -> bytes:
        """The path, without the query."""
        return self.url.partition(b"?")[0]

    @property
    def id(self) -> bytes:
        """The client's id of its request, or `-` where it cannot be echoed as it is."""
        given = self.headers.get(b"x-request-id", b"")
        fits = len(given) <= _MAX_ID_BYTES and given.isascii() and given.decode().isprintable()
        return given if fits else b"-"
