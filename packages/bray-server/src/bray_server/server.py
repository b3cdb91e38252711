"""One process that hosts a service over TCP and HTTP."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bray_core.errors import ConfigError, PortInUseError
from bray_core.event_loop import EventLoopThread
from bray_server.auth import Tokens
from bray_server.limits import Limits
from bray_server.sessions import Service, Sessions
from bray_server.tcp import Connection

if TYPE_CHECKING:
    from aiohttp import web

_REAP_EVERY = 4
"""Idle sessions are looked for so many times in an idle timeout."""


class Server:
    """Hosts a service on the running event loop.

    Args:
        service: a class or function that makes a session's actor from its id (stateful), or an
            object with an async `tick` (stateless).
        host: address to bind.
        tcp_port: of the binary protocol; 0 takes any free one, None offers none.
        http_port: likewise for HTTP.
        limits: what a client may use.
        tokens: bearer tokens that are accepted; none: everyone may call.
    """

    def __init__(
        self,
        service: Service,
        *,
        host: str = "127.0.0.1",
        tcp_port: int | None = 0,
        http_port: int | None = None,
        limits: Limits | None = None,
        tokens: Sequence[str] = (),
    ) -> None:
        if tcp_port is None and http_port is None:
            raise ConfigError("tcp_port: expected a port here or in http_port, got None in both")
        self._host = host
        self._ports = {"tcp_port": tcp_port, "http_port": http_port}
        self._limits = limits or Limits()
        self._tokens = Tokens(tokens)
        self._sessions = Sessions(service, self._limits)
        self._connections: set[Connection] = set()
        self._tcp: asyncio.Server | None = None
        self._http: web.AppRunner | None = None
        self._reaper: asyncio.Task[None] | None = None
        self.tcp_port: int | None = None
        """The TCP port that is bound, once started."""
        self.http_port: int | None = None
        """The HTTP port that is bound, once started."""

    @property
    def num_sessions(self) -> int:
        """Sessions that are open."""
        return len(self._sessions)

    @property
    def sessions(self) -> Sessions:
        """The table of sessions with its counters."""
        return self._sessions

    async def start(self) -> None:
        """Bind the ports and begin to answer.

        Raises:
            PortInUseError: names the port.
        """
        try:
            await self._start_tcp()
            await self._start_http()
        except BaseException:
            await self.stop(0.0)
            raise
        self._reaper = asyncio.create_task(self._reap())

    async def _start_tcp(self) -> None:
        port = self._ports["tcp_port"]
        if port is None:
            return
        try:
            self._tcp = await asyncio.get_running_loop().create_server(
                lambda: Connection(self._sessions, self._limits, self._tokens, self._connections),
                self._host,
                port,
            )
        except OSError as error:
            raise self._explain(error, "tcp_port") from error
        self.tcp_port = self._tcp.sockets[0].getsockname()[1]

    async def _start_http(self) -> None:
        port = self._ports["http_port"]
        if port is None:
            return
        from aiohttp import web

        from bray_server.http import make_runner

        self._http = make_runner(self._sessions, self._limits, self._tokens)
        await self._http.setup()
        try:
            await web.TCPSite(self._http, self._host, port).start()
        except OSError as error:
            raise self._explain(error, "http_port") from error
        self.http_port = self._http.addresses[0][1]

    def _explain(self, error: OSError, name: str) -> Exception:
        if error.errno == errno.EADDRINUSE:
            port = self._ports[name] or 0
            return PortInUseError(
                self._host, port, f"choose another {name.replace('_', ' ')}, or 0 for any free one"
            )
        return error

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(self._limits.idle_timeout_s / _REAP_EVERY)
            await self._sessions.reap_idle()

    async def stop(self, drain_s: float = 5.0) -> None:
        """Stop: refuse new sessions, let running requests finish for `drain_s`, close all."""
        if self._tcp is not None:
            self._tcp.close()
        await self._sessions.drain(drain_s)
        for connection in list(self._connections):
            connection.close()
        if self._http is not None:
            await self._http.cleanup()
        if self._reaper is not None:
            self._reaper.cancel()
        self._tcp = self._http = self._reaper = None


class ServerThread:
    """A `Server` on an event loop of its own: for programs without one. Listens at once.

    Args:
        service, **options: as for `Server`.

    Raises:
        PortInUseError: names the port.
    """

    def __init__(
        self,
        service: Service,
        *,
        host: str = "127.0.0.1",
        tcp_port: int | None = 0,
        http_port: int | None = None,
        limits: Limits | None = None,
        tokens: Sequence[str] = (),
    ) -> None:
        self._host = host
        self._server = Server(
            service, host=host, tcp_port=tcp_port, http_port=http_port, limits=limits, tokens=tokens
        )
        self.loop = EventLoopThread("server")
        try:
            self.loop.run(self._server.start())
        except BaseException:
            self.loop.stop()
            raise

    @property
    def addresses(self) -> list[str]:
        """Where clients reach it: `tcp://host:port`, then `http://host:port`."""
        ports = (("tcp", self._server.tcp_port), ("http", self._server.http_port))
        return [f"{scheme}://{self._host}:{port}" for scheme, port in ports if port is not None]

    def stats(self) -> dict[str, float]:
        """Return requests, errors and open sessions."""
        counters = self._server.sessions.counters
        return {
            "requests": counters.requests,
            "errors": sum(counters.errors.values()),
            "sessions": self._server.num_sessions,
        }

    def close(self, drain_s: float = 1.0) -> None:
        """Drain, close all connections, end the thread; again is harmless."""
        if self.loop.loop.is_closed():
            return
        try:
            self.loop.run(self._server.stop(drain_s), timeout_s=drain_s + 10.0)
        finally:
            self.loop.stop()
