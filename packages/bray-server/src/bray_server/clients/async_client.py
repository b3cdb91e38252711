"""The asynchronous client: any number of requests in flight on one connection."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from bray_core.errors import ConfigError, DeadlineError, ServiceError
from bray_core.json_body import JsonBody
from bray_core.settings.ranges import PositiveFloat, check_value
from bray_server.clients.delta_sessions import DeltaSessions
from bray_server.wire.address import Address
from bray_server.wire.frame_transport import FrameTransport
from bray_server.wire.frames import JSON
from bray_server.wire.requests import (
    JSON_TYPE,
    KINDS,
    MAKES_WAY,
    RETRY_AFTER_S,
    Reply,
    Request,
    http_error,
    http_reply,
    not_ready,
    reply_of,
    unreachable,
)
from bray_server.wire.tls import client_tls_context


class _Transport(Protocol):
    async def request(self, request: Request) -> Reply: ...

    async def close(self) -> None: ...


class AsyncClient:
    """Calls a server from an event loop; the same calls as `Client`, awaited.

    Made by `await AsyncClient.connect(address)`. A connection that was lost is made anew by the
    next call; nothing that may have been answered is sent twice.
    """

    def __init__(self, transport: _Transport, timeout_s: float) -> None:
        self._transport = transport
        self._timeout_s = timeout_s

    @classmethod
    async def connect(
        cls,
        address: str,
        token: str | None = None,
        timeout_s: float = 60.0,
        *,
        certificate_authority: str | Path | None = None,
        delta: bool = False,
    ) -> AsyncClient:
        """Connect; the arguments are those of `Client`.

        Raises:
            ServiceError: `unreachable`, or `unauthorized` (TCP; over HTTP at the first call).
            DeadlineError: Connecting took longer than `timeout_s`.
            ConfigError: An argument is out of range.
        """
        check_value("timeout_s", timeout_s, PositiveFloat)
        parsed = Address.parse(address)
        tls = client_tls_context(parsed, certificate_authority)
        if delta and not parsed.is_tcp:
            raise ConfigError(f"delta: offered over TCP only, got {parsed}")
        transport: _Tcp | _Http
        transport = _Tcp(parsed, token, tls, delta) if parsed.is_tcp else _Http(parsed, token, tls)
        try:
            async with asyncio.timeout(timeout_s):
                await transport.open()
        except TimeoutError:
            raise DeadlineError(f"{parsed}: no connection within {timeout_s:g} s") from None
        return cls(transport, timeout_s)

    async def start(self, session: str, body: bytes = b"") -> bytes:
        """Start a session; errors as in `Client.start`."""
        return await self._one(Request("start", session, body))

    async def tick(self, session: str, body: bytes) -> bytes:
        """Send one tick; errors as in `Client.start`."""
        return await self._one(Request("tick", session, body))

    async def end(self, session: str, body: bytes = b"") -> bytes:
        """End a session; errors as in `Client.start`."""
        return await self._one(Request("end", session, body))

    async def call(self, body: bytes) -> bytes:
        """Call a stateless service; errors as in `Client.start`."""
        return await self._one(Request("call", "", body))

    async def _one(self, request: Request) -> bytes:
        try:
            async with asyncio.timeout(self._timeout_s):
                reply = await self._transport.request(request)
                if isinstance(reply, ServiceError):
                    reply = await self._once_ready(request, reply)
        except TimeoutError:
            raise self._late() from None
        if isinstance(reply, ServiceError):
            raise reply
        return reply

    def _late(self) -> DeadlineError:
        return DeadlineError(f"no reply within {self._timeout_s:g} s")

    async def exchange(self, requests: Sequence[Request]) -> list[Reply]:
        """Send many requests at once and gather their replies, in the order of the requests."""
        try:
            async with asyncio.timeout(self._timeout_s):
                replies = await asyncio.gather(*map(self._transport.request, requests))
                if not_ready(replies):
                    pairs = zip(requests, replies, strict=True)
                    replies = await asyncio.gather(*(self._once_ready(*pair) for pair in pairs))
                return replies
        except TimeoutError:
            raise self._late() from None

    async def _once_ready(self, request: Request, reply: Reply) -> Reply:
        """Return a reply; while it is `not_ready` the request is sent again."""
        while not_ready([reply]):
            await asyncio.sleep(RETRY_AFTER_S)
            try:
                reply = await self._transport.request(request)
            except ServiceError as error:
                if error.code not in MAKES_WAY:
                    raise
        return reply

    async def close(self) -> None:
        """Close the connection."""
        await self._transport.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()


class _Tcp:
    def __init__(
        self, address: Address, token: str | None, tls: ssl.SSLContext | None, delta: bool
    ) -> None:
        self._address = address
        self._token = token
        self._tls = tls
        self._delta = DeltaSessions(delta)
        self._opening = asyncio.Lock()
        self._frames: FrameTransport | None = None

    async def open(self) -> FrameTransport:
        async with self._opening:
            if self._frames is None or self._frames.is_closed:
                self._delta.forget_all()
                self._frames = await FrameTransport.connect(self._address, self._token, self._tls)
            return self._frames

    async def request(self, request: Request) -> Reply:
        frames = self._frames
        if frames is None or frames.is_closed:
            frames = await self.open()
        reply = await self._send(frames, request)
        if self._delta.to_repeat([request], [reply]):
            reply = await self._send(frames, request)
        return reply

    async def _send(self, frames: FrameTransport, request: Request) -> Reply:
        kind, session, body = request
        encoded, flags = self._delta.encode(kind, session, body)
        if type(body) is JsonBody:
            flags |= JSON
        frame = await frames.send_frame(KINDS[kind], session.encode(), encoded, flags)
        self._delta.note_reply(frame)
        return reply_of(frame)

    async def close(self) -> None:
        if self._frames is not None:
            await self._frames.close()


class _Http:
    def __init__(self, address: Address, token: str | None, tls: ssl.SSLContext | None) -> None:
        self._address = address
        self._headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        self._tls = tls
        self._session: Any = None

    async def open(self) -> None:
        import aiohttp

        connector = aiohttp.TCPConnector(ssl=self._tls or True, limit=0)
        self._session = aiohttp.ClientSession(connector=connector, headers=self._headers)

    async def request(self, request: Request) -> Reply:
        import aiohttp

        headers = {}
        if request.kind != "call":
            headers = {"session": request.session, "step_kind": request.kind}
        if type(request.body) is JsonBody:
            headers["Content-Type"] = JSON_TYPE
        url = f"{self._address}/step"
        try:
            async with self._session.post(url, data=request.body, headers=headers) as response:
                body: bytes = await response.read()
                if response.status != 200:
                    return http_error(response.status, body)
                return http_reply(body, response.headers.get("Content-Type"))
        except aiohttp.ClientConnectorError as error:
            raise unreachable(self._address, error) from error
        except aiohttp.ClientError as error:
            raise ServiceError("connection_lost", f"{self._address}: {error}") from error
        except ValueError as error:  # aiohttp's word for a session id that no header can hold
            raise ServiceError("bad_session", str(error)) from error

    async def close(self) -> None:
        await self._session.close()
