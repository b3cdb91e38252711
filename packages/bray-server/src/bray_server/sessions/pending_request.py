"""A request that waits to be answered, and the connection that it came by."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol, TypeAlias

from bray_server.sessions.session_table import SessionOwner


class Caller(SessionOwner, Protocol):
    """A connection, as the dispatcher sees it."""

    is_blocked: bool
    is_lost: bool
    waiting: set[asyncio.Task[None]]

    def reply(self, item: PendingRequest, reply: Any) -> None:
        """Send the answer of one of its requests."""
        ...

    def hold(self, item: PendingRequest) -> None:
        """Keep a request until its client reads its replies again."""
        ...

    def abort(self) -> None:
        """Close the connection at once."""
        ...


PendingRequest: TypeAlias = tuple[Caller, int, bytes, Any, Any, float]
"""A request: caller, kind, session, body (for a page a `PageRequest`), a tag of the caller's own,
time received. A plain tuple: it is made for every tick."""
