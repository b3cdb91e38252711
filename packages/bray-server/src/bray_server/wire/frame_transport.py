"""One connection of the binary protocol on an event loop: replies find their callers by id."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import cast

from bray_core.errors import ServiceError
from bray_core.json_body import JsonBody
from bray_server.wire.address import Address
from bray_server.wire.frames import JSON, Frame, FrameParser, Kind, pack
from bray_server.wire.requests import (
    MAX_REPLY_BYTES,
    MAX_SESSION_BYTES,
    Reply,
    reply_of,
    unreachable,
)


class FrameTransport(asyncio.Protocol):
    """A connection with any number of requests in flight. Made by `connect` or `connect_unix`."""

    def __init__(self, peer: object) -> None:
        self._peer = peer
        self._last_id = 0
        self._parser = FrameParser(MAX_REPLY_BYTES, MAX_SESSION_BYTES)
        self._waiting: dict[int, asyncio.Future[Frame]] = {}
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def connect(
        cls, address: Address, token: str | None, tls: ssl.SSLContext | None
    ) -> FrameTransport:
        """Connect to a server. Raises ServiceError: `unreachable` or `unauthorized`."""
        try:
            _, made = await asyncio.get_running_loop().create_connection(
                lambda: cls(address), address.host, address.port, ssl=tls
            )
        except OSError as error:
            raise unreachable(address, error) from error
        if token is not None:
            reply = await made.send(Kind.HELLO, b"", token.encode())
            if isinstance(reply, ServiceError):
                await made.close()
                raise reply
        return made

    @classmethod
    async def connect_unix(cls, path: Path) -> FrameTransport:
        """Connect to another worker of this host. Raises ServiceError: `unreachable`."""
        try:
            _, made = await asyncio.get_running_loop().create_unix_connection(
                lambda: cls(path.name), str(path)
            )
        except OSError as error:
            raise unreachable(path.name, error) from error
        return made

    @property
    def is_closed(self) -> bool:
        """Whether the connection cannot be used any more."""
        return self._transport is None or self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        """Fail all requests that wait."""
        self._transport = None
        self._fail_all(ServiceError("connection_lost", f"{self._peer}: {error or 'closed'}"))

    def data_received(self, data: bytes) -> None:
        """Hand replies to their callers; one that nobody waits for any more is dropped."""
        for frame in self._parser.feed(data):
            future = self._waiting.pop(frame[2], None)
            if future is None:
                reply = reply_of(frame) if frame[2] == 0 else None
                if isinstance(reply, ServiceError):
                    self._fail_all(reply)  # the connection's own error: the server closes it
            elif not future.done():
                future.set_result(frame)
        if self._parser.error is not None:
            self._fail_all(ServiceError("connection_lost", f"{self._peer}: {self._parser.error}"))
            if self._transport is not None:
                self._transport.abort()

    def _fail_all(self, error: ServiceError) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)
        self._waiting.clear()

    async def send(self, kind: int, session: bytes, body: bytes) -> Reply:
        """Send one request and return its reply, a body or the server's error.

        Raises:
            ServiceError: `connection_lost`.
        """
        flags = JSON if type(body) is JsonBody else 0
        return reply_of(await self.send_frame(kind, session, body, flags))

    async def send_frame(self, kind: int, session: bytes, body: bytes, flags: int = 0) -> Frame:
        """Send one request and return the reply's frame; errors as in `send`."""
        if self._transport is None or self._transport.is_closing():
            raise ServiceError("connection_lost", f"{self._peer}: closed")
        self._last_id = request_id = self._last_id % 0xFFFFFFFF + 1
        future: asyncio.Future[Frame] = self._loop.create_future()
        self._waiting[request_id] = future
        self._transport.write(pack(kind, request_id, session, body, flags))
        try:
            return await future
        finally:
            self._waiting.pop(request_id, None)

    async def close(self) -> None:
        """Close the connection; a second call is harmless."""
        if self._transport is not None:
            self._transport.close()
