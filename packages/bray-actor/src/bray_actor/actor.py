"""The life of one session, as a base class."""

from __future__ import annotations


class Actor:
    """Answers one session: `start`, any number of `tick`, `end`. Subclass it and write `tick`.

    Bodies are opaque bytes that the gamecore and the actor agree on. One request of a session
    runs at a time.
    """

    async def start(self, body: bytes) -> bytes:
        """Answer the session's first request; by default with nothing."""
        return b""

    async def tick(self, body: bytes) -> bytes:
        """Answer one tick."""
        raise TypeError(f"{type(self).__name__}.tick: not written: override it")

    async def end(self, body: bytes) -> bytes:
        """Answer the session's last request; by default with nothing."""
        return b""

    async def abort(self, reason: str) -> None:
        """The session was lost (connection, idle timeout, shutdown): free what it holds."""
