"""The asynchronous client: any number of requests in flight on one connection."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any, Protocol, cast

from bray_core.errors import ConfigError, DeadlineError, ServiceError
from bray_server.address import Address
from bray_server.client import KINDS, Reply, Request, http_error, reply_of, unreachable
from bray_server.frames import FrameError, FrameParser, Kind, pack

_MAX_REPLY_BYTES = 1 << 30
_MAX_SESSION_BYTES = 65535


class _Transport(Protocol):
    async def request(self, request: Request) -> Reply: ...

    async def close(self) -> None: ...


class AsyncClient:
    """Calls a server from an event loop; the same calls as `Client`, awaited.

    Made by `await AsyncClient.connect(address)`. Nothing is retried.
    """

    def __init__(self, transport: _Transport, timeout_s: float) -> None:
        self._transport = transport
        self._timeout_s = timeout_s

    @classmethod
    async def connect(
        cls, address: str, token: str | None = None, timeout_s: float = 60.0
    ) -> AsyncClient:
        """Connect to `tcp://host:port` or `http://host:port`.

        Raises:
            ServiceError: `unreachable`, or `unauthorized` (TCP; over HTTP at the first call).
            DeadlineError: it took longer than `timeout_s`.
        """
        if timeout_s <= 0:
            raise ConfigError(f"timeout_s: expected more than 0, got {timeout_s}")
        parsed = Address.parse(address)
        connect = _Tcp.connect if parsed.scheme == "tcp" else _Http.connect
        try:
            async with asyncio.timeout(timeout_s):
                return cls(await connect(parsed, token), timeout_s)
        except TimeoutError:
            raise DeadlineError(f"{parsed}: no connection within {timeout_s:g} s") from None

    async def start(self, session: str, body: bytes = b"") -> bytes:
        """Start a session; errors as in `Client.start`."""
        return await self._one(Request("start", session, body))

    async def tick(self, session: str, body: bytes) -> bytes:
        """Send one tick."""
        return await self._one(Request("tick", session, body))

    async def end(self, session: str, body: bytes = b"") -> bytes:
        """End a session."""
        return await self._one(Request("end", session, body))

    async def call(self, body: bytes) -> bytes:
        """Call a stateless service."""
        return await self._one(Request("call", "", body))

    async def _one(self, request: Request) -> bytes:
        (reply,) = await self.exchange([request])
        if isinstance(reply, ServiceError):
            raise reply
        return reply

    async def exchange(self, requests: Sequence[Request]) -> list[Reply]:
        """Send many requests at once and gather their replies, in the order of the requests."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.gather(*map(self._transport.request, requests))
        except TimeoutError:
            raise DeadlineError(f"no reply within {self._timeout_s:g} s") from None

    async def close(self) -> None:
        """Close the connection."""
        await self._transport.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()


class _Tcp(asyncio.Protocol):
    """Replies find their callers by request id."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._ids = itertools.count(1)
        self._parser = FrameParser(_MAX_REPLY_BYTES, _MAX_SESSION_BYTES)
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def connect(cls, address: Address, token: str | None) -> _Tcp:
        loop = asyncio.get_running_loop()
        try:
            _, client = await loop.create_connection(
                lambda: cls(address), address.host, address.port
            )
        except OSError as error:
            raise unreachable(address, error) from error
        if token is not None:
            reply = await client._send(Kind.HELLO, "", token.encode())
            if isinstance(reply, ServiceError):
                await client.close()
                raise reply
        return client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._fail_all(ServiceError("connection_lost", f"{self._address}: {error or 'closed'}"))

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._parser.feed(data):
                future = self._waiting.pop(frame.request_id, None)
                reply = reply_of(frame)
                if future is not None and not future.done():
                    future.set_result(reply)
                elif isinstance(reply, ServiceError) and future is None:
                    self._fail_all(reply)  # the connection's own error: the server closes it
        except FrameError as error:
            self._fail_all(ServiceError("connection_lost", f"{self._address}: {error}"))
            if self._transport is not None:
                self._transport.abort()

    def _fail_all(self, error: ServiceError) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)
        self._waiting.clear()

    async def request(self, request: Request) -> Reply:
        return await self._send(KINDS[request.kind], request.session, request.body)

    async def _send(self, kind: Kind, session: str, body: bytes) -> Reply:
        if self._transport is None:
            raise ServiceError("connection_lost", f"{self._address}: closed")
        request_id = next(self._ids) & 0xFFFFFFFF
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = future
        self._transport.write(pack(kind, request_id, session, body))
        try:
            return await future
        finally:
            self._waiting.pop(request_id, None)

    async def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class _Http:
    def __init__(self, address: Address, session: Any) -> None:
        self._address = address
        self._session = session

    @classmethod
    async def connect(cls, address: Address, token: str | None) -> _Http:
        import aiohttp

        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        return cls(address, aiohttp.ClientSession(headers=headers))

    async def request(self, request: Request) -> Reply:
        import aiohttp

        headers = {}
        if request.kind != "call":
            headers = {"session": request.session, "step_kind": request.kind}
        url = f"{self._address}/step"
        try:
            async with self._session.post(url, data=request.body, headers=headers) as response:
                body: bytes = await response.read()
                return body if response.status == 200 else http_error(response.status, body)
        except aiohttp.ClientConnectorError as error:
            raise unreachable(self._address, error) from error
        except aiohttp.ClientError as error:
            raise ServiceError("connection_lost", f"{self._address}: {error}") from error

    async def close(self) -> None:
        await self._session.close()
