"""Further pages of a service: other protocols over HTTP, on the same port and limits."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from bray_core.codec import decode, encode
from bray_core.errors import CodecError, ServiceError
from bray_server.sessions.error_codes import check_method
from bray_server.sessions.page_streams import PageStream

PAGE = 0
"""Kind of a request for a page; the kinds of `frames.Kind` begin at 1."""
HEADERS = frozenset(
    {
        b"content-encoding",
        b"content-type",
        b"host",
        b"inference-header-content-length",
        b"origin",
        b"sec-fetch-site",
        b"x-session-id",
        b"x-stainless-retry-count",
    }
)
"""Headers that a page receives; the server itself reads others."""


@dataclass(slots=True)
class PageRequest:
    """A request for a page."""

    method: str
    path: str
    """Percent-encoded path, without the query."""
    headers: Mapping[bytes, bytes]
    """Headers of `HEADERS` that came, by lower-case name."""
    body: bytes
    others: PageOwners | None = None
    """Other workers that share the port; None where there are none."""
    is_forwarded: bool = False
    """Whether another worker forwarded the request: it is not forwarded to a third."""
    is_draining: bool = False
    """Whether the server is shutting down; only public pages are asked then."""
    read: object = field(default=None, init=False, repr=False, compare=False)
    """What the pages keep of it between `group` and `answer_together`."""

    def __len__(self) -> int:
        return len(self.body)

    def expect(self, *methods: str) -> None:
        """Refuse the request unless it came by one of the methods; `GET` stands for `HEAD`, too.

        Raises:
            ServiceError: `method_not_allowed`, answered with the header `Allow`.
        """
        check_method(self.path, self.method, *methods)

    def again(self, body: bytes) -> PageRequest:
        """Return a request for the same page with another body."""
        return PageRequest(self.method, self.path, self.headers, body)

    def to_bytes(self) -> bytes:
        """Return the bytes that one worker sends to another; `from_bytes` reads them."""
        headers = {name.decode("latin-1"): value for name, value in self.headers.items()}
        content = {"method": self.method, "path": self.path, "headers": headers, "body": self.body}
        return encode(content)

    @classmethod
    def from_bytes(cls, data: bytes) -> PageRequest:
        """Read a request that another worker forwarded. Raises CodecError."""
        content = _read(data)
        headers = {name.encode("latin-1"): value for name, value in content["headers"].items()}
        return cls(content["method"], content["path"], headers, content["body"])


@dataclass(slots=True)
class PageReply:
    """Answer of a page."""

    body: bytes
    status: int = 200
    content_type: bytes = b"application/json"
    headers: Mapping[bytes, bytes] = field(default_factory=dict)
    """Further headers of the reply."""

    def __len__(self) -> int:
        return len(self.body)

    def to_bytes(self) -> bytes:
        """Return the bytes that one worker sends to another; `from_bytes` reads them."""
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
        """Claim a key. Raises ServiceError: `session_exists`: a worker has it, perhaps this one."""
        ...

    def release(self, session: bytes) -> None:
        """Give up a key."""
        ...

    async def forward_page(self, key: bytes, request: PageRequest) -> PageReply:
        """Let the owner of a key answer.

        Raises:
            ServiceError: The owner's error; `unknown_session`: nobody else owns it;
                `worker_lost`: the owner died.
        """
        ...


class Pages(Protocol):
    """Answers requests for other paths than `/step`, `/health`, `/ready` and `/metrics`.

    It may have a set of paths, `public`: they are answered without a token, and while the server
    shuts down. And it may have a method `check(request)`, which raises a ServiceError to refuse a
    request by its line and headers alone: its body is then not read.

    And it may be `GroupedPages`.
    """

    async def answer(self, request: PageRequest) -> PageReply | PageStream:
        """Answer a request. A ServiceError that is raised is answered by `error`."""
        ...

    def error(self, error: ServiceError, status: int) -> PageReply:
        """Return the reply for an error, which the server or the page itself found."""
        ...


class GroupedPages(Pages, Protocol):
    """Pages that prefer to answer some requests together, as they came in one turn of the loop."""

    def group(self, request: PageRequest) -> Hashable | None:
        """Return what is equal for requests that may be answered together; None: this one alone.

        It does not raise: what is wrong with the request `answer` says.
        """
        ...

    async def answer_together(
        self, requests: Sequence[PageRequest]
    ) -> Sequence[PageReply | ServiceError]:
        """Answer requests of one group, in their order."""
        ...


def grouped(pages: Pages | None) -> GroupedPages | None:
    """Return the pages if they answer some requests together."""
    return cast(GroupedPages, pages) if hasattr(pages, "answer_together") else None


def public_paths(pages: Pages | None) -> frozenset[str]:
    """Return the paths that are answered without a token, and while the server shuts down."""
    paths: frozenset[str] = getattr(pages, "public", frozenset())
    return paths


def early_check(pages: Pages | None) -> Callable[[PageRequest], None] | None:
    """Return the pages' `check`, which refuses requests before their bodies are read, if any."""
    check: Callable[[PageRequest], None] | None = getattr(pages, "check", None)
    return check


def _read(data: bytes) -> dict[str, Any]:
    content = decode(data, max_bytes=len(data), trusted=True)
    if not isinstance(content, dict):
        raise CodecError(f"page: expected a dict, got {type(content).__name__}")
    return content
