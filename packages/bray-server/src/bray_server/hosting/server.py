"""One process that hosts a service over TCP and HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bray_core.errors import ConfigError
from bray_core.metrics import registry
from bray_core.metrics.prometheus import rows
from bray_core.process import memory
from bray_core.process.machine import allow_open_files
from bray_core.settings.ranges import Port, check_value
from bray_server.hosting.connection import Connection
from bray_server.hosting.group import WorkerGroup
from bray_server.hosting.http import HttpConnection
from bray_server.hosting.listen_error import listen_error
from bray_server.hosting.tcp import TcpConnection
from bray_server.hosting.tls_handshake import TlsHandshake
from bray_server.hosting.worker_connection import WorkerConnection
from bray_server.limits.access import Tokens
from bray_server.limits.byte_budget import ByteBudget
from bray_server.limits.client_shares import ClientShares
from bray_server.limits.limits import Limits
from bray_server.sessions.dispatcher import Dispatcher
from bray_server.sessions.pages import Pages, early_check, public_paths
from bray_server.sessions.server_metrics import prometheus
from bray_server.sessions.services import Service
from bray_server.sessions.sessions import Sessions
from bray_server.wire.tls import Tls

logger = logging.getLogger(__name__)

_OTHER_FILES = 64
"""Open files of a process besides its connections: libraries, weights, logs, listeners."""
_TIMERS_LATE_S = 0.02
_LAST_WORDS_S = 1.0
"""Time that a stopping server gives its clients to receive their last replies."""
_BACKLOG = 1024
_TRIM_EVERY_S = 1.0
_TRIM_BYTES = 4 * 1024 * 1024
"""Bytes in flight after which freed memory goes back to the system, once they are gone."""


class Server:
    """Hosts a service on the running event loop.

    Args:
        service: Class or function that makes a session's actor from its id (stateful), or an object
            with an async `tick` (stateless).
        host: Address to bind.
        tcp_port: Port of the binary protocol; 0 takes any free one, None offers none.
        http_port: Port of HTTP; 0 takes any free one, None offers none.
        limits: Limits of what clients may use.
        tokens: Bearer tokens that are accepted, several at once while they are rotated. Without
            any, everyone may call.
        tls: Certificate for both ports; None: no TLS.
        access_log: Whether to write a JSON line per request to the logger `bray_server.access`.
        group: Folder that all workers on the same ports share, by which each finds the sessions of
            the others. None: the ports are this server's alone.
        pages: Further pages over HTTP, beside `/step` and the server's own.

    Raises:
        ConfigError: A setting is out of range.
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
        tls: Tls | None = None,
        access_log: bool = False,
        group: Path | None = None,
        pages: Pages | None = None,
    ) -> None:
        if tcp_port is None and http_port is None:
            raise ConfigError("tcp_port: expected a port here or in http_port, got None in both")
        check_value("tcp_port", tcp_port, Port | None)
        check_value("http_port", http_port, Port | None)
        self._host = host
        self._ports = (tcp_port, http_port)
        self.limits = _fitting(limits or Limits())
        self.tokens = Tokens(tokens)
        self.access_log = access_log
        self._tls: ssl.SSLContext | None = tls.context() if tls is not None else None
        self._group = WorkerGroup(group, self.limits.idle_timeout_s) if group is not None else None
        self.pages = pages
        self.public_pages = public_paths(pages)
        self.check_page = early_check(pages)
        self.sessions = Sessions(service, self.limits, self._group, pages)
        """The open sessions, and what answers requests."""
        self.dispatcher = Dispatcher(self.sessions)
        self.connections: set[Connection] = set()
        self.shares = ClientShares(self.limits.max_connections, self.limits.max_client_share)
        """Number of connections of each client."""
        self.budget = ByteBudget(self.limits.max_bytes_in_flight, self.limits.max_client_share)
        """Budget of bytes in flight, over all connections."""
        self._num_delta = 0
        self._listeners: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.tcp_port: int | None = None
        """The TCP port that is bound, once started."""
        self.http_port: int | None = None
        """The HTTP port that is bound, once started."""
        self.direct_port: int | None = None
        """In a group, the TCP port that is this worker's alone, once started."""

    @property
    def num_sessions(self) -> int:
        """Number of open sessions."""
        return len(self.sessions)

    @property
    def addresses(self) -> list[str]:
        """Addresses of the server: `tcp://host:port`, then `http://host:port`; with TLS `…s://`."""
        return self._addresses(("tcp", self.tcp_port), ("http", self.http_port))

    @property
    def worker_addresses(self) -> list[str]:
        """TCP addresses of this very worker."""
        return self._addresses(("tcp", self.direct_port or self.tcp_port))

    def _addresses(self, *ports: tuple[str, int | None]) -> list[str]:
        s = "s" if self._tls is not None else ""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return [f"{scheme}{s}://{host}:{port}" for scheme, port in ports if port is not None]

    async def start(self) -> None:
        """Bind the ports and begin to answer.

        Raises:
            PortInUseError: A port is taken; names it.
            ConfigError: The host is none of this machine, or a port may not be opened.
        """
        memory.keep_small_freed()
        reuse = self._group is not None
        try:
            if self._group is not None:
                await self._group.start(lambda: WorkerConnection(self))
                self.direct_port = await self._listen("direct port", 0, self._connect_tcp)
            tcp_port, http_port = self._ports
            self.tcp_port = await self._listen("tcp port", tcp_port, self._connect_tcp, reuse)
            self.http_port = await self._listen("http port", http_port, self._connect_http, reuse)
        except BaseException:
            await self.stop(0.0)
            raise
        self.spawn(self._check_connections())
        self.spawn(self._reap())
        self.spawn(self._give_memory_back())

    def _connect_tcp(self) -> asyncio.Protocol:
        return self._secured(TcpConnection(self))

    def _connect_http(self) -> asyncio.Protocol:
        return self._secured(HttpConnection(self))

    def _secured(self, connection: Connection) -> asyncio.Protocol:
        return connection if self._tls is None else TlsHandshake(connection, self._tls)

    async def _listen(
        self,
        name: str,
        port: int | None,
        connect: Callable[[], asyncio.Protocol],
        reuse: bool = False,
    ) -> int | None:
        if port is None:
            return None
        try:
            listener = await asyncio.get_running_loop().create_server(
                connect,
                self._host,
                port,
                reuse_port=reuse or None,
                backlog=_BACKLOG,
            )
        except (OSError, UnicodeError) as error:
            raise listen_error(name, self._host, port, error) from error
        self._listeners.append(listener)
        bound: int = listener.sockets[0].getsockname()[1]
        return bound

    # What connections ask of the server: `ServerContext`.

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine until it ends or the server stops."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def take_delta(self) -> bool:
        """Return whether one more session may use delta encoding, and count it."""
        if self._num_delta >= self.limits.max_delta_sessions:
            return False
        self._num_delta += 1
        return True

    def give_back_delta(self) -> None:
        """Count one session with delta encoding less."""
        self._num_delta -= 1

    def snapshot(self) -> dict[str, Any]:
        """Return the metrics of this worker, and those of its process, as plain values."""
        gauges = {
            "sessions": len(self.sessions),
            "connections": len(self.connections),
            "requests_under_way": self.sessions.num_running,
            "streams": self.sessions.num_streams,
            "bytes_in_flight": self.budget.used_bytes,
        }
        return {**self.sessions.metrics.snapshot(gauges), "recorded": rows(registry())}

    async def metrics(self) -> str:
        """Return Prometheus text of all workers that share the ports."""
        if self._group is None:
            return prometheus({"": self.snapshot()})
        others = await self._group.gather_metrics()
        return prometheus({self._group.name: self.snapshot(), **others})

    async def _check_connections(self) -> None:
        every = min(self.limits.receive_timeout_s, self.limits.send_timeout_s) / 4
        while True:
            late_s = await _sleep(every)
            now = time.monotonic()
            for connection in list(self.connections):
                connection.check_time(now, late_s)

    async def _give_memory_back(self) -> None:
        """Return the memory of large requests to the system, once no more of them come."""
        had_large = False
        while True:
            await asyncio.sleep(_TRIM_EVERY_S)
            has_large = self.budget.take_peak() > _TRIM_BYTES
            if had_large and not has_large and not memory.keeps_freed():
                await asyncio.to_thread(memory.give_back)
            had_large = has_large

    async def _reap(self) -> None:
        while True:
            late_s = await _sleep(self.limits.idle_timeout_s / 4)
            await self.sessions.reap_idle(late_s)
            if self._group is not None:
                await self._group.sweep()

    async def lame_duck(self, duration_s: float) -> None:
        """Answer no at `/ready` for a while, so that load balancers send no more; then call `stop`.

        New sessions are refused, for they would not be over soon; all else is answered as ever.
        """
        self.sessions.draining = True
        await asyncio.sleep(duration_s)

    async def stop(self, drain_s: float = 5.0) -> None:
        """Stop: refuse new sessions and calls, let open ones end within `drain_s`, close.

        Sessions that are still open after `drain_s` are aborted. Until then the server also takes
        connections: sessions over HTTP go on over any of them, and `/ready` answers no.
        """
        await self.sessions.drain(drain_s)
        for listener in self._listeners:
            listener.close()
        connections = list(self.connections)
        for connection in connections:
            connection.server_stopped()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                while self.connections:  # noqa: ASYNC110  they tell nobody else
                    await asyncio.sleep(0.005)
        for connection in list(self.connections):
            connection.abort()
        self.dispatcher.stop()
        if self._group is not None:
            await self._group.stop()
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listeners.clear()


def _fitting(limits: Limits) -> Limits:
    """Return limits with no more connections than this process may have open files for."""
    wanted = limits.max_connections
    possible = max(1, allow_open_files(wanted + _OTHER_FILES) - _OTHER_FILES)
    if possible >= wanted:
        return limits
    logger.warning(
        "max_connections: %d are allowed, but this process may have files for %d only: raise "
        "`ulimit -Hn` (LimitNOFILE= of systemd), or lower max_connections",
        wanted,
        possible,
    )
    return replace(limits, max_connections=possible)


async def _sleep(duration_s: float) -> float:
    """Sleep, and return how many seconds later than planned the sleep ended.

    So long the process was stopped, or its loop was held up: a tick that blocks, a machine that
    was suspended. uvloop calls what is due before it reads what came meanwhile. That a timer is
    always late by some milliseconds counts as nothing.
    """
    due = time.monotonic() + duration_s
    await asyncio.sleep(duration_s)
    late_s = time.monotonic() - due
    return late_s if late_s > _TIMERS_LATE_S else 0.0
