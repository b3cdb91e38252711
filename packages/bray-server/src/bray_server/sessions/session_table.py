"""The table of the sessions that are open in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from bray_core.errors import ServiceError
from bray_core.protocols import ActorProtocol
from bray_server.limits.client_shares import ClientShares
from bray_server.limits.limits import Limits
from bray_server.sessions.pages import PageOwners


class SessionOwner(Protocol):
    """The connection that a request came on."""

    is_worker: bool
    """Whether another worker forwarded the request: it is not forwarded to a third."""
    owns_sessions: bool
    """Whether sessions that are started on the connection end with it."""
    client: str
    """Address of the client, by which its share of sessions is counted; empty: no limit."""

    def session_ended(self, session: bytes) -> None:
        """Forget a session that was started on the connection."""
        ...


class PeerWorkers(PageOwners, Protocol):
    """The other workers that share the port."""

    def claim(self, session: bytes) -> None:
        """Claim a session for this worker. Raises ServiceError: another worker has it."""
        ...

    def release(self, session: bytes) -> None:
        """Give up the claim to a session."""
        ...

    async def forward(self, kind: int, session: bytes, body: bytes) -> bytes:
        """Let the owner of a session answer. Raises ServiceError: also if there is none."""
        ...


class OpenSession:
    """An open session: its actor, and the connection that it ends with."""

    __slots__ = ("actor", "busy", "client", "last_used", "num_to_queue", "owner")

    def __init__(self, actor: ActorProtocol, owner: SessionOwner | None, client: str) -> None:
        self.actor = actor
        self.owner = owner
        self.client = client
        self.busy = True
        self.last_used = 0.0
        self.num_to_queue = 0
        """Number of ticks that go to the queue, because the last one waited."""


class SessionTable:
    """Opens and forgets sessions: bounded in number, shared between clients, known to peers.

    Args:
        limits: Bounds of the server.
        others: Other workers that share the port with this one.
    """

    def __init__(self, limits: Limits, others: PeerWorkers | None) -> None:
        self.entries: dict[bytes, OpenSession] = {}
        """Open sessions by id."""
        self._owned: dict[SessionOwner, dict[bytes, OpenSession]] = {}
        self._max_sessions = limits.max_sessions
        self._shares = ClientShares(limits.max_sessions, limits.max_client_share)
        self._others = others

    def open(
        self, session: bytes, make: Callable[[], ActorProtocol], owner: SessionOwner | None
    ) -> OpenSession:
        """Open a session, which is busy until its `start` is answered.

        Args:
            session: Id of the session.
            make: Makes the actor of the session.
            owner: Connection that the session is started on.

        Raises:
            ServiceError: `session_exists`, here or at a peer; `too_many_sessions`.
        """
        if session in self.entries:
            name = session.decode(errors="replace")
            raise ServiceError("session_exists", f"session {name!r} was started already")
        if len(self.entries) >= self._max_sessions:
            raise ServiceError(
                "too_many_sessions", f"{len(self.entries)} sessions are open, the limit"
            )
        client = owner.client if owner is not None else ""
        if not self._shares.take(client):
            raise ServiceError(
                "too_many_sessions",
                f"{self._shares.max_places} sessions of {client} are open, a client's share",
            )
        try:
            if self._others is not None:
                self._others.claim(session)
        except BaseException:
            self._shares.give(client)
            raise
        try:
            keeper = owner if owner is not None and owner.owns_sessions else None
            entry = OpenSession(make(), keeper, client)
        except BaseException:
            self._shares.give(client)
            self._release(session)
            raise
        self.entries[session] = entry
        if keeper is not None:
            self._owned.setdefault(keeper, {})[session] = entry
        return entry

    def owned_by(self, owner: SessionOwner) -> list[tuple[bytes, OpenSession]]:
        """Return the open sessions that end with a connection."""
        return list(self._owned.get(owner, {}).items())

    def remove(self, session: bytes, entry: OpenSession) -> bool:
        """Forget a session; False if that was done already, by a disconnect for instance."""
        if self.entries.get(session) is not entry:
            return False
        del self.entries[session]
        self._shares.give(entry.client)
        if (owner := entry.owner) is not None:
            owned = self._owned[owner]
            del owned[session]
            if not owned:
                del self._owned[owner]
            owner.session_ended(session)
        self._release(session)
        return True

    def _release(self, session: bytes) -> None:
        if self._others is not None:
            self._others.release(session)
