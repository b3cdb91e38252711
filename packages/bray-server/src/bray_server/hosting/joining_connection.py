"""A connection that sends the replies of one turn of the event loop in one system call.

The lanes of a gamecore tick together and are answered together. Sent one by one, each reply would
wake the gamecore, which takes longer than to answer it.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC

from bray_server.hosting.connection import Connection, ServerContext

_MOST_BYTES = 64 * 1024
"""Bytes of replies that wait for others."""
_MOST_S = 0.001
"""Time after which a reply waits for no further one: an answer may compute for long."""


class JoiningConnection(Connection, ABC):
    """A connection whose small replies wait for each other, but never for what is not there yet.

    The last reply that is due is sent at once, with those before it; where others are still due
    these are sent when the event loop has been through what was ready.
    """

    def __init__(self, host: ServerContext, *, is_worker: bool = False) -> None:
        super().__init__(host, is_worker=is_worker)
        self._joined: list[bytes] = []
        """Replies that wait, in order."""
        self._joined_bytes = 0
        self._joined_at = 0.0
        """When the first of them was there."""

    def write_reply(self, data: bytes) -> None:
        """Send a reply, perhaps with others."""
        joined = self._joined
        if not joined:
            if not self.num_under_way:
                super().write(data)
                return
            asyncio.get_running_loop().call_soon(self._flush)
            self._joined_at = time.monotonic()
        joined.append(data)
        self._joined_bytes += len(data)
        if (
            not self.num_under_way
            or self._joined_bytes > _MOST_BYTES
            or (len(joined) > 1 and time.monotonic() - self._joined_at > _MOST_S)
        ):
            self._flush()

    def _flush(self) -> None:
        if self._joined:
            data = b"".join(self._joined)
            self._joined.clear()
            self._joined_bytes = 0
            super().write(data)

    def write(self, data: bytes) -> None:
        """Send data after the replies before it."""
        self._flush()
        super().write(data)

    def write_parts(self, head: bytes, body: bytes) -> None:
        """Send a head and a body after the replies before them."""
        self._flush()
        super().write_parts(head, body)

    def close(self) -> None:
        """Close the connection after what was written has been sent."""
        self._flush()
        super().close()

    def linger(self) -> None:
        """Close the connection once the client had time to read the last reply."""
        self._flush()
        super().linger()
