"""Limits of a server: what all clients together, and each of them, may use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias

from bray_core.settings.ranges import PositiveInt, Range, check_fields

Seconds: TypeAlias = Annotated[float, Range(above=0, allow_infinity=True)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits of one server; a client beyond them gets an error, never silence."""

    max_body_bytes: PositiveInt = 16 * 1024 * 1024
    """Largest body of a request."""
    max_header_bytes: PositiveInt = 16 * 1024
    """Largest request line with all its headers, over HTTP."""
    max_session_bytes: PositiveInt = 256
    """Longest session id, in bytes of UTF-8."""
    max_sessions: PositiveInt = 10_000
    """Number of sessions open at a time."""
    max_delta_sessions: PositiveInt = 1_000
    """Number of sessions with delta encoding at a time; others are served without it."""
    max_requests: PositiveInt = 10_000
    """Number of requests under way at a time, over all connections."""
    max_requests_per_connection: PositiveInt = 1_024
    """Number of requests under way on one connection; beyond it no more is read from it."""
    max_connections: PositiveInt = 10_000
    """Number of clients' connections open at a time, over all ports. The process may then have as
    many open files, up to its hard limit (`ulimit -Hn`); where that is lower there are fewer
    connections, and a warning says so."""
    max_bytes_in_flight: PositiveInt = 256 * 1024 * 1024
    """Bytes of all bodies above 64 KiB that are received or answered, and replies not yet sent.
    Beyond it a body waits unread until there is room, or is refused as `overloaded`. Too low, large
    requests go one after the other; too high, the process may be killed for its memory."""
    max_stream_bytes: PositiveInt = 64 * 1024 * 1024
    """Largest body of a streamed page, over all its pieces."""
    max_client_share: Annotated[float, Range(above=0, maximum=1)] = 0.9
    """Part of `max_sessions` and of `max_connections` (where they are 32 or more), and of
    `max_bytes_in_flight`, that one client, a peer address, may have: the rest is kept for others. 1
    behind a proxy, where all clients have one address."""
    idle_timeout_s: Seconds = 60.0
    """Time after which a session or an HTTP connection without a request is ended."""
    tick_timeout_s: Seconds = 60.0
    """Time that a service may take for one request, and between two pieces of a streamed page."""
    stream_timeout_s: Seconds = 3600.0
    """Time that a streamed page may take from its first piece to its last."""
    receive_timeout_s: Seconds = 20.0
    """Time from the first byte of a request to its last, and from connecting to the first
    request."""
    send_timeout_s: Seconds = 20.0
    """Time after which a client that reads none of its replies is cut off."""

    def __post_init__(self) -> None:
        check_fields(self)
