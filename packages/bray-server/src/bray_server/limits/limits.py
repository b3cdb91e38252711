"""What one server grants."""

from __future__ import annotations

from dataclasses import dataclass, fields

from bray_core.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Bounds of one server; beyond them a client gets an error, never silence."""

    max_body_bytes: int = 16 * 1024 * 1024
    """Of a request's body."""
    max_header_bytes: int = 16 * 1024
    """Of an HTTP request's line and headers."""
    max_session_bytes: int = 256
    """Of a session id, in UTF-8."""
    max_sessions: int = 10_000
    """Sessions open at a time."""
    max_delta_sessions: int = 1_000
    """Sessions with delta encoding at a time; others are served without it."""
    max_requests: int = 10_000
    """Requests under way at a time, over all connections."""
    max_requests_per_connection: int = 1_024
    """Beyond it the connection is not read until one is answered."""
    max_connections: int = 10_000
    """Clients' connections open at a time, over all ports."""
    max_bytes_in_flight: int = 256 * 1024 * 1024
    """Bytes of all bodies above 64 KiB that are received or answered, and replies not yet sent.
    Beyond it a body waits unread until there is room, or is refused as `overloaded`."""
    max_client_share: float = 0.9
    """Part of `max_sessions` and of `max_connections` (where they are 32 or more) that one client,
    a peer address, may have: the rest is kept for others. 1: all, as behind a proxy."""
    idle_timeout_s: float = 60.0
    """A session without a request for so long is ended, as is an idle HTTP connection."""
    tick_timeout_s: float = 60.0
    """How long a service may take for one request."""
    receive_timeout_s: float = 20.0
    """From the first byte of a request to its last, and from connecting to the first request."""
    send_timeout_s: float = 20.0
    """A client that reads none of its replies for so long is cut off."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            wanted = int if field.type == "int" else (int, float)
            if isinstance(value, bool) or not isinstance(value, wanted):
                raise ConfigError(f"{field.name}: expected a number, got {value!r}")
            if not value > 0:
                raise ConfigError(f"{field.name}: expected more than 0, got {value}")
        if self.max_client_share > 1:
            raise ConfigError(
                f"max_client_share: expected more than 0, 1 at most, got {self.max_client_share}"
            )
