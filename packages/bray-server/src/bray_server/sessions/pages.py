"""Pages of a service beside `/step`: other protocols over HTTP, on the same port and limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from bray_core.codec import decode, encode
from bray_core.errors import CodecError, ServiceError

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
    others: PageOwners | None = None
    """The other workers that share the port; None: there are none."""
    is_forwarded: bool = False
    """Whether another worker sent it on: it is not sent on to a third."""
    is_draining: bool = False
    """Whether the server is shutting down; only public pages are asked then."""

    def __len__(self) -> int:
        return len(self.body)

    def to_bytes(self) -> bytes:
        """Return it as one worker sends it to another; `from_bytes` reads it."""
        headers = {name.decode("latin-1"): value for name, value in self.headers.items()}
        content = {"method": self.method, "path": self.path, "headers": headers, "body": self.body}
        return encode(content)

    @classmethod
    def from_bytes(cls, data: bytes) -> PageRequest:
        """Read a request that another worker sent on. Raises CodecError."""
        content = _read(data)
        headers = {name.encode("latin-1"): value for name, value in content["headers"].items()}
        return cls(content["method"], content["path"], headers, content["body"])


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

    def to_bytes(self) -> bytes:
        """Return it as one worker sends it to another; `from_bytes` reads it."""
        headers = {name.decode("latin-1"): value for name, value in self.headers.items()}
        content = {"status": self.status, "content_type": self.content_type, "headers": headers}
        return encode({**content, "body": self.body})

    @classmethod
    def from_bytes(cls, data: bytes) -> PageReply:
        """Read the reply of another worker. Raises CodecError."""
        content = _read(data)
        headers = {name.encode("latin-1"): value for name, value in content["headers"].items()}
        return cls(content["body"], content["status"], content["content_type"], headers)


class PageOwners(Protocol):
    """The workers that share a port, as a page sees them: each key has one owner at most."""

    def claim(self, session: bytes) -> None:
        """Own a key. Raises ServiceError: `session_exists`: a worker owns it, perhaps this one."""
        ...

    def release(self, session: bytes) -> None:
        """Own a key no longer."""
        ...

    async def forward_page(self, key: bytes, request: PageRequest) -> PageReply:
        """Let the owner of a key answer.

        Raises:
            ServiceError: its error; `unknown_session`: nobody else owns it; `worker_lost`: the
                owner died.
        """
        ...


class Pages(Protocol):
    """Answers what is asked beside `/step`, `/health`, `/ready` and `/metrics`.

    It may have a set of paths, `public`: they are answered without a token, and while the server
    shuts down. And it may have a method `check(request)`, which raises a ServiceError for what is
    refused by its line and headers alone: such a request's body is not read.
    """

    async def answer(self, request: PageRequest) -> PageReply:
        """Answer. A ServiceError that is raised is answered as `error` says."""
        ...

    def error(self, error: ServiceError, status: int) -> PageReply:
        """Return how an error looks here, whoever found it."""
        ...


def public_paths(pages: Pages | None) -> frozenset[str]:
    """Return the paths that are answered without a token, and while the server shuts down."""
    paths: frozenset[str] = getattr(pages, "public", frozenset())
    return paths


def checked_early(pages: Pages | None) -> Callable[[PageRequest], None] | None:
    """Return what refuses requests before their bodies are read, if there is such a thing."""
    check: Callable[[PageRequest], None] | None = getattr(pages, "check", None)
    return check


def _read(data: bytes) -> dict[str, Any]:
    content = decode(data, max_bytes=len(data), trusted=True)
    if not isinstance(content, dict):
        raise CodecError(f"page: expected a dict, got {type(content).__name__}")
    return content
