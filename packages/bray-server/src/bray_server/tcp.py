"""The binary protocol on a TCP port: many requests in flight on one connection."""

from __future__ import annotations

import asyncio
import logging
from typing import cast

from bray_core.errors import ServiceError
from bray_server.auth import Tokens
from bray_server.frames import Frame, FrameError, FrameParser, Kind, pack, pack_error
from bray_server.limits import Limits
from bray_server.sessions import Sessions

logger = logging.getLogger(__name__)

_REQUESTS = {
    int(Kind.START): "start",
    int(Kind.TICK): "tick",
    int(Kind.END): "end",
    int(Kind.CALL): "call",
}
_MAX_IN_FLIGHT = 4096
"""Requests of one connection that run at a time; beyond it the connection is not read."""


class Connection(asyncio.Protocol):
    """One client. Sessions that it starts are bound to it: they are aborted when it is gone."""

    def __init__(
        self, sessions: Sessions, limits: Limits, tokens: Tokens, connections: set[Connection]
    ) -> None:
        self._sessions = sessions
        self._parser = FrameParser(limits.max_body_bytes, limits.max_session_bytes)
        self._tokens = tokens
        self._connections = connections
        self._trusted = not tokens.required
        self._tasks: set[asyncio.Task[None]] = set()
        self._paused = False
        self._blocked = False
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve."""
        self._transport = cast(asyncio.Transport, transport)
        self._connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        """Cancel what runs for the client and abort its sessions."""
        self._transport = None
        self._connections.discard(self)
        for task in self._tasks:
            task.cancel()
        task = self._loop.create_task(self._sessions.disconnect(self))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def data_received(self, data: bytes) -> None:
        """Start what the frames ask for; a bad one is answered, then the connection closes."""
        try:
            for frame in self._parser.feed(data):
                self._receive(frame)
        except FrameError as error:
            self._refuse(error.request_id, error.code, str(error))

    def _receive(self, frame: Frame) -> None:
        if not self._trusted and frame.kind != Kind.HELLO:
            raise _Refused("unauthorized", "the first frame must be hello with a token", frame)
        request = _REQUESTS.get(frame.kind)
        if request is not None:
            task = self._loop.create_task(self._answer(request, frame))
            self._tasks.add(task)
            task.add_done_callback(self._finished)
            if len(self._tasks) >= _MAX_IN_FLIGHT:
                self._set_reading()
        elif frame.kind == Kind.PING:
            self._write(pack(Kind.PONG, frame.request_id, "", frame.body))
        elif frame.kind == Kind.HELLO:
            if not self._tokens.accept(frame.body):
                raise _Refused("unauthorized", "unknown token", frame)
            self._trusted = True
            self._write(pack(Kind.REPLY, frame.request_id, "", b""))
        else:
            raise _Refused("bad_frame", f"kind {frame.kind} is for servers to send", frame)

    async def _answer(self, request: str, frame: Frame) -> None:
        try:
            body = await self._sessions.request(request, frame.session, frame.body, self)
        except ServiceError as error:
            self._write(pack_error(frame.request_id, frame.session, error.code, error.message))
        else:
            self._write(pack(Kind.REPLY, frame.request_id, frame.session, body))

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("request failed unexpectedly", exc_info=task.exception())
        if self._paused:
            self._set_reading()

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _refuse(self, request_id: int, code: str, message: str) -> None:
        self._write(pack_error(request_id, "", code, message))
        self.close()

    def close(self) -> None:
        """Close the connection after what was written has been sent."""
        if self._transport is not None:
            self._transport.close()

    def pause_writing(self) -> None:
        """The client does not read its replies: read no more of its requests."""
        self._blocked = True
        self._set_reading()

    def resume_writing(self) -> None:
        """The client reads again."""
        self._blocked = False
        self._set_reading()

    def _set_reading(self) -> None:
        pause = self._blocked or len(self._tasks) >= _MAX_IN_FLIGHT
        if self._transport is None or self._transport.is_closing() or pause == self._paused:
            return
        self._paused = pause
        if pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()


class _Refused(FrameError):
    def __init__(self, code: str, message: str, frame: Frame) -> None:
        super().__init__(code, message, frame.request_id)
