"""Servers in worker processes on Ray, behind one port."""

from __future__ import annotations

import contextlib
import inspect
import logging
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bray_core.errors import (
    DeadlineError,
    ServiceError,
    WorkerLostError,
)
from bray_core.process.memory import freeze_loaded_objects
from bray_core.remote.cluster import this_node
from bray_core.remote.load_balancing import STRATEGIES, LoadBalancer, Strategy
from bray_core.remote.pool import WorkerPool
from bray_core.settings.choice import check_choice
from bray_server.clients.client import Client
from bray_server.hosting.reserved_port import reserved_port
from bray_server.hosting.server_thread import ServerThread
from bray_server.limits.limits import Limits
from bray_server.sessions.services import Service
from bray_server.wire.tls import Tls

_CLOSE_TIMEOUT_S = 3.0
_CONCURRENCY = 2
_NOT_TAKEN = ("unreachable", "draining", "overloaded")
"""Errors of a worker that has done nothing: another one may be asked."""

logger = logging.getLogger(__name__)


class RemoteServer:
    """A pool of workers that answer on the same ports of this host (`bray_server.hosting.group`).

    A session lives in one worker. A request for it may go to any: the others send it on. When a
    worker dies, its sessions are lost, which their next requests are told (`worker_lost`), and a
    new worker takes its place.

    Args:
        name: of the pool.
        service: a class with `start`: its instances answer one session each; or what is called
            once in each worker, and again in one that replaces it, and returns the service that
            it hosts: a class with only `tick`, or a function.
        num_workers: how many.
        host: as for `Server`.
        tcp_port: as for `Server`.
        http_port: as for `Server`.
        limits: of each worker, as for `Server`.
        tokens: as for `Server`.
        tls: as for `Server`.
        access_log: as for `Server`.
        strategy: how `call` chooses a worker: see `bray_core.remote.load_balancing`.
        certificate_authority: PEM file that `call` trusts, with TLS.

    Raises:
        PortInUseError: names the port.
        ConfigError: a setting is out of range.
        AlreadyExistsError: the cluster has a pool of that name.
    """

    def __init__(
        self,
        name: str,
        service: Callable[..., Any],
        *,
        num_workers: int = 1,
        host: str = "127.0.0.1",
        tcp_port: int | None = 0,
        http_port: int | None = None,
        limits: Limits | None = None,
        tokens: Sequence[str] = (),
        tls: Tls | None = None,
        access_log: bool = False,
        strategy: Strategy = "round_robin",
        certificate_authority: str | Path | None = None,
    ) -> None:
        check_choice("strategy", strategy, STRATEGIES)
        self._strategy = strategy
        self._token = tokens[0] if tokens else None
        self._certificate_authority = certificate_authority
        self._folder = Path(tempfile.mkdtemp(prefix="bray-server-"))
        with contextlib.ExitStack() as undo:
            undo.callback(shutil.rmtree, self._folder, ignore_errors=True)
            ports = {
                "tcp_port": undo.enter_context(reserved_port(host, "tcp_port", tcp_port)),
                "http_port": undo.enter_context(reserved_port(host, "http_port", http_port)),
            }
            options = {
                "host": host,
                "limits": limits,
                "tokens": tuple(tokens),
                "tls": tls,
                "access_log": access_log,
                "group": self._folder,
                **ports,
            }
            self._pool = WorkerPool(
                name,
                _Worker,
                args=(service, options),
                num_workers=num_workers,
                max_concurrency=_CONCURRENCY,
                node=this_node(),  # which has the ports, and the folder
            )
            undo.callback(self._pool.close)
            self._shared: list[str] = self._pool.call("addresses", worker=0)
            self._direct: list[str] = self._pool.call_all("direct_address")
            self._balance = LoadBalancer(num_workers, self._pool.near)
            self._undo = undo.pop_all()
        self._clients = threading.local()

    @property
    def addresses(self) -> list[str]:
        """Where clients reach the workers, all of them: `tcp://host:port`, then `http://…`."""
        return list(self._shared)

    @property
    def worker_addresses(self) -> list[str]:
        """Where clients reach each worker alone, over TCP; asks them: one that died has a new one.

        For clients that want the load laid out by hand, such as one gamecore process a worker.
        """
        self._direct = self._pool.call_all("direct_address")
        return list(self._direct)

    def call(self, body: bytes, *, key: str | None = None, timeout_s: float = 60.0) -> bytes:
        """Let one worker answer a stateless call, over a socket, from any thread.

        A worker that is gone, full or shutting down has done nothing: the next one is asked.

        Args:
            body: opaque.
            key: for the strategy `hash`.
            timeout_s: for each worker that is asked.

        Raises:
            ServiceError: the service's error; `connection_lost`: the worker died meanwhile.
            DeadlineError: no reply in time.
        """
        chosen = self._balance.choose(self._strategy, key)
        for attempt in range(self._pool.size):
            index = (chosen + attempt) % self._pool.size
            self._balance.in_flight[index] += 1
            try:
                return self._client(index, timeout_s).call(body)
            except ServiceError as error:
                if error.code not in _NOT_TAKEN or attempt == self._pool.size - 1:
                    raise
                self._refresh(index)
            finally:
                self._balance.in_flight[index] -= 1
        raise AssertionError("not reached: the last attempt returns or raises")

    def _client(self, index: int, timeout_s: float) -> Client:
        clients: dict[tuple[str, float], Client] = self._clients.__dict__.setdefault("all", {})
        where = self._direct[index], timeout_s
        if where not in clients:
            clients[where] = Client(
                where[0],
                self._token,
                timeout_s,
                certificate_authority=self._certificate_authority,
            )
        return clients[where]

    def _refresh(self, index: int) -> None:
        """Learn the new address of a worker that may have been replaced; harmless if it was not."""
        with contextlib.suppress(WorkerLostError, DeadlineError):
            self._direct[index] = self._pool.call("direct_address", worker=index, timeout_s=1.0)

    def stats(self) -> dict[str, float]:
        """Return requests, errors and open sessions of all workers."""
        totals: dict[str, float] = {}
        for metrics in self._pool.call_all("stats", again=True):
            for name, value in metrics.items():
                totals[name] = totals.get(name, 0.0) + value
        return totals

    def pids(self) -> list[int]:
        """Return the process ids of the workers."""
        return self._pool.pids()

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Wait until every worker answers, such as after one was killed."""
        self._pool.wait_ready(timeout_s)

    def close(self, drain_s: float = 0.0) -> None:
        """Let open sessions end for `drain_s`, free the ports, end the workers; again is harmless.

        Clients of other threads that `call` was used from stay open until those threads end.
        """
        if self._pool.size:
            try:
                self._pool.call_all("close", drain_s, timeout_s=drain_s + _CLOSE_TIMEOUT_S)
            except (WorkerLostError, DeadlineError) as error:
                logger.warning("server %s: a worker did not close: %s", self._pool.name, error)
        for client in self._clients.__dict__.pop("all", {}).values():
            client.close()
        self._undo.close()


class _Worker:
    """One worker: listens from its first moment on, also one that replaces another."""

    def __init__(self, service: Callable[..., Any], options: dict[str, Any]) -> None:
        is_session_class = inspect.isclass(service) and hasattr(service, "start")
        hosted: Service = service if is_session_class else service()
        self._server = ServerThread(hosted, **options)
        freeze_loaded_objects()

    def addresses(self) -> list[str]:
        return self._server.addresses

    def direct_address(self) -> str:
        return self._server.worker_addresses[0]

    def close(self, drain_s: float) -> None:
        self._server.close(drain_s)

    def stats(self) -> dict[str, float]:
        return self._server.stats()
