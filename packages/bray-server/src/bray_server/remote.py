"""Servers in worker processes on Ray that share one port."""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
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
"""Errors after which a worker has done nothing, so that another one may be asked."""

logger = logging.getLogger(__name__)


class RemoteServer:
    """A pool of workers that answer on the same ports of this host (`bray_server.hosting.group`).

    A session lives in one worker. A request for it may go to any: the others send it on. When a
    worker dies, its sessions are lost, which their next requests are told (`worker_lost`), and a
    new worker takes its place.

    Args:
        name: Name of the pool, unique in the cluster.
        service: Class with `start`, whose instances answer one session each; or a class or function
            that is called once in each worker process and returns the service to host.
        num_workers: Number of workers.
        host: Address to bind.
        tcp_port: Port of the binary protocol; 0 takes any free one, None offers none.
        http_port: Port of HTTP; 0 takes any free one, None offers none.
        limits: Limits of each worker.
        tokens: Bearer tokens that are accepted; without any, everyone may call.
        tls: Certificate for both ports; None: no TLS.
        access_log: Whether to write a JSON line per request.
        strategy: How `call` chooses a worker: see `bray_core.remote.load_balancing`.
        certificate_authority: PEM file that `call` trusts, with TLS.

    Raises:
        PortInUseError: A port is taken; names it.
        ConfigError: A setting is out of range.
        AlreadyExistsError: The cluster has a pool of that name.
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
        """Addresses that all workers share: `tcp://host:port`, then `http://…`."""
        return list(self._shared)

    @property
    def worker_addresses(self) -> list[str]:
        """TCP addresses of the single workers. It asks them: a restarted worker has a new one.

        They let clients choose their worker, such as one gamecore process per worker.
        """
        self._direct = self._pool.call_all("direct_address")
        return list(self._direct)

    def call(self, body: bytes, *, key: str | None = None, timeout_s: float = 60.0) -> bytes:
        """Let one worker answer a stateless call, over a socket, from any thread.

        A worker that is gone, full or shutting down has done nothing: the next one is asked.

        Args:
            body: Body of the request.
            key: Key for the strategy `hash`.
            timeout_s: Seconds to wait for each worker that is asked.

        Raises:
            ServiceError: The service's error; `connection_lost`: the worker died meanwhile.
            DeadlineError: No reply in time.
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
        """Ask a worker that may have been replaced for its address."""
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
        """Let open sessions end for `drain_s`, free the ports, and end the workers.

        Connections of other threads that used `call` stay open until those threads end.
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
    """The server in one worker, which listens as soon as it is made."""

    def __init__(self, service: Callable[..., Any], options: dict[str, Any]) -> None:
        is_session_class = inspect.isclass(service) and hasattr(service, "start")
        self._hosted: Service = service if is_session_class else service()
        self._server = ServerThread(self._hosted, **options)
        freeze_loaded_objects()

    def addresses(self) -> list[str]:
        return self._server.addresses

    def direct_address(self) -> str:
        return self._server.worker_addresses[0]

    def close(self, drain_s: float) -> None:
        self._server.close(drain_s)

    def stats(self) -> dict[str, float]:
        return self._server.stats()

    def report(self) -> tuple[int, Any]:
        """Return the process, and what the service says when its own `poll` is called."""
        hosted: Any = self._hosted
        return os.getpid(), hosted.poll()

    def tell(self, news: Any) -> None:
        """Call the service's own `tell`."""
        hosted: Any = self._hosted
        hosted.tell(news)
