"""Servers in worker processes on Ray."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from bray_core import metrics
from bray_core.errors import ConfigError, DeadlineError, WorkerLostError
from bray_core.remote import WorkerPool
from bray_server.limits import Limits
from bray_server.server import ServerThread
from bray_server.sessions import Service

_START_TIMEOUT_S = 120.0
_CLOSE_TIMEOUT_S = 3.0
_CONCURRENCY = 2

logger = logging.getLogger(__name__)


class RemoteServer:
    """A pool of workers, each a `Server` with ports of its own (`port`, `port + 1`, …; 0: any).

    Args:
        name: of the pool.
        make_service: called once in each worker; returns the service that it hosts.
        num_workers: how many.
        host, tcp_port, http_port, limits, tokens: as for `Server`.
    """

    def __init__(
        self,
        name: str,
        make_service: Callable[[], Service],
        *,
        num_workers: int = 1,
        host: str = "127.0.0.1",
        tcp_port: int | None = 0,
        http_port: int | None = None,
        limits: Limits | None = None,
        tokens: Sequence[str] = (),
    ) -> None:
        for port_name, port in (("tcp_port", tcp_port), ("http_port", http_port)):
            if port and port + num_workers - 1 > 65535:
                raise ConfigError(f"{port_name}: {port} + {num_workers} workers exceed 65535")
        self._ports = (tcp_port, http_port)
        self._pool = WorkerPool(
            name,
            _Worker,
            args=(make_service, host, limits, tuple(tokens)),
            num_workers=num_workers,
            max_concurrency=_CONCURRENCY,
        )
        try:
            self._listen()
        except BaseException:
            self._pool.close()
            raise

    def _listen(self) -> list[list[str]]:
        """Let every worker listen, also one that was restarted; return their addresses."""
        found = []
        for index in range(self._pool.size):
            ports = [port + index if port else port for port in self._ports]
            found.append(
                self._pool.call("listen", *ports, worker=index, timeout_s=_START_TIMEOUT_S)
            )
        return found

    @property
    def addresses(self) -> list[str]:
        """Where clients reach the workers; asks them, so one that was restarted listens again."""
        return [address for worker in self._listen() for address in worker]

    def stats(self) -> dict[str, float]:
        """Return requests, errors and open sessions of all workers."""
        totals: dict[str, float] = {}
        for figures in self._pool.call_all("stats"):
            for name, value in figures.items():
                totals[name] = totals.get(name, 0.0) + value
        return totals

    def pids(self) -> list[int]:
        """Return the process ids of the workers."""
        return self._pool.pids()

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Wait until every worker answers, such as after one was killed."""
        self._pool.wait_ready(timeout_s)

    def drain_metrics(self) -> list[metrics.Sample]:
        """Gather what every worker recorded."""
        return self._pool.drain_metrics()

    def close(self) -> None:
        """End all sessions, free the ports, end the workers; again is harmless."""
        if self._pool.size:
            try:
                self._pool.call_all("close", timeout_s=_CLOSE_TIMEOUT_S)
            except (WorkerLostError, DeadlineError) as error:
                logger.warning("server %s: a worker did not close: %s", self._pool.name, error)
        self._pool.close()


class _Worker:
    """One worker: it listens when it is told its ports."""

    def __init__(
        self,
        make_service: Callable[[], Service],
        host: str,
        limits: Limits | None,
        tokens: Sequence[str],
    ) -> None:
        self._make_service = make_service
        self._host = host
        self._limits = limits
        self._tokens = tokens
        self._server: ServerThread | None = None

    def listen(self, tcp_port: int | None, http_port: int | None) -> list[str]:
        if self._server is None:
            self._server = ServerThread(
                self._make_service(),
                host=self._host,
                tcp_port=tcp_port,
                http_port=http_port,
                limits=self._limits,
                tokens=self._tokens,
            )
        return self._server.addresses

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    def stats(self) -> dict[str, float]:
        return self._server.stats() if self._server is not None else {}
