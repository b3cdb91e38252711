"""Requests of sessions that are made ready: nobody works on them yet, so no attempt is known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Arrival:
    """A request of a session that is not worked on yet.

    Args:
        on_over: Called once it is worked on, or refused.
    """

    def __init__(self, on_over: Callable[[Arrival], None]) -> None:
        self.is_over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._on_over = on_over

    def over(self) -> None:
        """Let requests that are the same go on."""
        if not self.is_over.done():
            self.is_over.set_result(None)
            self._on_over(self)


class Arrivals:
    """Requests that are made ready, so that the same one sent again waits until it is known."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, bytes], Arrival] = {}

    def begin(self, session: str, digest: bytes) -> Arrival:
        """Return a request that arrived just now; call its `over` in any case."""
        key = session, digest

        def forget(arrival: Arrival) -> None:
            if self._newest.get(key) is arrival:
                del self._newest[key]

        arrival = self._newest[key] = Arrival(forget)
        return arrival

    async def wait(self, session: str, digest: bytes) -> None:
        """Wait until no such request is on its way."""
        while (arrival := self._newest.get((session, digest))) is not None:
            await asyncio.shield(arrival.is_over)
