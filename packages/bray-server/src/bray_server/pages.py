"""Pages of a service beside `/step`: other protocols over HTTP, on the same port and limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from bray_core.errors import ServiceError

PAGE = 0
"""The kind of a request for a page; those of `frames.Kind` begin at 1."""
HEADERS = frozenset(
    {
        b"content-encoding",
        b"content-type",
        b"host",
        b"inference-header-content-length",
        b"origin",
        b"sec-fetch-site",
    }
)
"""Headers that a page is told, beside those that the server itself reads."""


@dataclass(slots=True)
class PageRequest:
    """A request for a page."""

    method: str
    path: str
    """As it came, without the query: percent-encoded."""
    headers: Mapping[bytes, bytes]
    """Those of `HEADERS` that came, by lower-case name."""
    body: bytes

    def __len__(self) -> int:
        return len(self.body)


@dataclass(slots=True)
class PageReply:
    """What a page answers."""

    body: bytes
    status: int = 200
    content_type: bytes = b"application/json"
    headers: Mapping[bytes, bytes] = field(default_factory=dict)
    """Further ones."""

    def __len__(self) -> int:
        return len(self.body)


class Pages(Protocol):
    """Answers what is asked beside `/step`, `/health`, `/ready` and `/metrics`."""

    async def answer(self, request: PageRequest) -> PageReply:
        """Answer. A ServiceError that is raised is answered as `error` says."""
        ...

    def error(self, error: ServiceError, status: int) -> PageReply:
        """Return how an error looks here, whoever found it."""
        ...
