"""A server for programs without an event loop of their own."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from bray_core.process.event_loop import EventLoopThread
from bray_core.process.memory import freeze_loaded_objects
from bray_server.hosting.server import Server

if TYPE_CHECKING:
    from bray_server.sessions.services import Service

LAME_DUCK_S = 2.0
_STOP_S = 10.0
"""What stopping may take beyond the drain."""


class ServerThread:
    """A `Server` on an event loop of its own. Listens at once.

    Args:
        service: as for `Server`.
        **options: as for `Server`.

    Raises:
        PortInUseError: names the port.
    """

    def __init__(self, service: Service, **options: Any) -> None:
        self.loop = EventLoopThread("server")
        self._drained_s = 0.0
        try:
            self._server = self.loop.run(_make(service, options))
        except BaseException:
            self.loop.stop()
            raise

    @property
    def addresses(self) -> list[str]:
        """Where clients reach it: `tcp://host:port`, then `http://host:port`."""
        return self._server.addresses

    @property
    def worker_addresses(self) -> list[str]:
        """Where clients reach each worker: there is one."""
        return self._server.worker_addresses

    def stats(self) -> dict[str, float]:
        """Return requests, errors and open sessions."""
        metrics = self._server.sessions.metrics
        return {
            "requests": sum(metrics.requests.values()),
            "errors": sum(metrics.errors.values()),
            "sessions": self._server.num_sessions,
        }

    def lame_duck(self, duration_s: float) -> None:
        """Say at `/ready` that no more is wanted, and go on answering for that long; then close."""
        if duration_s <= 0 or self.loop.loop.is_closed():
            return
        began = time.monotonic()
        self.loop.run(self._server.lame_duck(duration_s), timeout_s=duration_s + _STOP_S)
        self._drained_s = time.monotonic() - began

    def close(self, drain_s: float = 1.0) -> None:
        """Drain, close all connections, end the thread; again is harmless.

        Args:
            drain_s: how long open sessions may go on, a `lame_duck` before it included.
        """
        if self.loop.loop.is_closed():
            return
        drain_s = max(0.0, drain_s - self._drained_s)
        try:
            self.loop.run(self._server.stop(drain_s), timeout_s=drain_s + _STOP_S)
        finally:
            self.loop.stop()


async def _make(service: Service, options: dict[str, Any]) -> Server:
    server = Server(service, **options)
    await server.start()
    return server


def serve(
    service: Service,
    *,
    drain_s: float = 30.0,
    lame_duck_s: float = LAME_DUCK_S,
    on_start: Callable[[ServerThread], None] | None = None,
    **options: Any,
) -> None:
    """Host a service until SIGTERM or SIGINT, then drain; for a program that does nothing else.

    Args:
        service: as for `Server`.
        **options: as for `Server`.
        drain_s: how long open sessions may go on after the signal; a second one ends it at once.
        lame_duck_s: how long at least all but new sessions is answered after SIGTERM while `/ready`
            says no, so that a balancer can tell; `drain_s` at most. Ctrl-C skips it.
        on_start: called once the server listens, to tell its addresses for example.

    Raises:
        PortInUseError: names the port.
    """

    def start() -> Callable[[], None]:
        server = ServerThread(service, **options)
        servers.append(server)
        freeze_loaded_objects()
        if on_start is not None:
            on_start(server)
        return partial(server.close, drain_s)

    servers: list[ServerThread] = []
    until_signal(start, lambda: servers[0].lame_duck(min(lame_duck_s, drain_s)))


def until_signal(
    start: Callable[[], Callable[[], None]], lame_duck: Callable[[], None] | None = None
) -> None:
    """Call `start`, wait for SIGTERM or SIGINT, then call what it returned, which stops.

    A second signal ends the wait for that. Call it from the main thread.

    Args:
        start: begins to serve.
        lame_duck: called before stopping, where the signal was SIGTERM: nobody waits at a terminal.
    """
    first, second = threading.Event(), threading.Event()
    received: list[int] = []

    def note(number: int, _: object) -> None:
        received.append(number)
        (second if first.is_set() else first).set()

    def close() -> None:
        if lame_duck is not None and received[0] == signal.SIGTERM:
            lame_duck()
        stop()

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        stop = start()
        first.wait()
        closing = threading.Thread(target=close, daemon=True)
        closing.start()
        while closing.is_alive() and not second.is_set():
            closing.join(0.05)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
