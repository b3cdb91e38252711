"""Pages that are answered in pieces, such as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field

from bray_core.errors import ServiceError


@dataclass(slots=True)
class PageStream:
    """Answer of a page that is sent piece by piece, as the pieces are made.

    The next chunk is asked for once the client has read what came before, up to a small buffer.
    The generator is closed at once when the client leaves: what its `finally` frees is free then.
    One that was never asked for a chunk is not run at all, so whatever has to be freed is to be
    taken inside of it. Time and size are bounded by the server's `Limits`.
    """

    chunks: AsyncGenerator[bytes, None]
    """The body in pieces. A ServiceError that it raises ends the answer."""
    status: int = 200
    content_type: bytes = b"text/event-stream"
    headers: Mapping[bytes, bytes] = field(default_factory=dict)
    """Further headers of the reply."""
    error_chunk: Callable[[ServiceError], bytes] | None = None
    """Makes the last piece of an answer that fails half way. None: the connection is cut, so that
    the client sees that the body is not whole."""
    sent_bytes: int = field(default=0, init=False)
    """Bytes of the body that were sent so far."""

    def __len__(self) -> int:
        return self.sent_bytes
