"""A client of a service in this process: sessions, limits and errors, but no socket."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from bray_core.errors import ServiceError
from bray_core.process.event_loop import EventLoopThread
from bray_core.settings.ranges import PositiveFloat, check_value
from bray_server.clients.client import Client
from bray_server.limits.limits import Limits
from bray_server.sessions.services import Service
from bray_server.sessions.sessions import Sessions
from bray_server.wire.requests import KINDS, Reply, Request

_STOP_S = 10.0


class InProcessClient(Client):
    """Calls a service on an event loop of its own, as a `Client` calls a `Server`.

    Args:
        service: The service: see `Server`.
        limits: Limits of the server.
        timeout_s: Seconds that each call may take.

    Examples:
        >>> class Echo:
        ...     async def tick(self, body: bytes) -> bytes:
        ...         return body
        >>> with InProcessClient(Echo()) as client:
        ...     client.call(b"hello")
        b'hello'
    """

    def __init__(
        self, service: Service, *, limits: Limits | None = None, timeout_s: float = 60.0
    ) -> None:
        check_value("timeout_s", timeout_s, PositiveFloat)
        self._timeout_s = timeout_s
        self._transport = _Hosted(Sessions(service, limits or Limits()))


class _Hosted:
    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._loop = EventLoopThread("in-process")
        self._closed = False

    def exchange(self, requests: Sequence[Request], timeout_s: float) -> list[Reply]:
        if self._closed:
            raise ServiceError("connection_lost", "the client was closed")
        return self._loop.run(self._answer(requests), timeout_s)

    async def _answer(self, requests: Sequence[Request]) -> list[Reply]:
        now = time.monotonic()
        answers = [
            self._sessions.answer(KINDS[r.kind], r.session.encode(), r.body, received_s=now)
            for r in requests
        ]
        if len(answers) == 1:
            return [await answers[0]]
        return list(await asyncio.gather(*answers))

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            self._loop.run(self._sessions.drain(0.0), _STOP_S)
        finally:
            self._loop.stop()
