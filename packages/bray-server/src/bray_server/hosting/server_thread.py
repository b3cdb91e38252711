"""A server for programs without an event loop of their own."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from functools import partial
from typing import TYPE_CHECKING, Any

from bray_core.outputs import leave_closed_terminal
from bray_core.process.event_loop import EventLoopThread
from bray_core.process.memory import freeze_loaded_objects
from bray_server.hosting.server import Server

if TYPE_CHECKING:
    from bray_server.sessions.services import Service

LAME_DUCK_S = 2.0
_STOP_S = 10.0
"""Time that stopping may take beyond the drain."""
_LOOK_S = 0.5
"""Time between two looks whether a signal has come."""


class ServerThread:
    """A `Server` on an event loop of its own, which listens at once.

    Args:
        service: The service: see `Server`.
        **options: Options of `Server`.

    Raises:
        PortInUseError: A port is taken; names it.
        ConfigError: The host is none of this machine, or a port may not be opened.
    """

    def __init__(self, service: Service, **options: Any) -> None:
        self.loop = EventLoopThread("server")
        self._drained_s = 0.0
        self._closing = threading.Lock()
        try:
            self._server = self.loop.run(_make(service, options))
        except BaseException:
            self.loop.stop()
            raise

    @property
    def addresses(self) -> list[str]:
        """Addresses of the server: `tcp://host:port`, then `http://host:port`."""
        return self._server.addresses

    @property
    def worker_addresses(self) -> list[str]:
        """TCP address of each worker; there is one."""
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
        """Answer no at `/ready` for a while; then call `close`. See `Server.lame_duck`."""
        if duration_s <= 0 or self.loop.loop.is_closed():
            return
        began = time.monotonic()
        self.loop.run(self._server.lame_duck(duration_s), timeout_s=duration_s + _STOP_S)
        self._drained_s = time.monotonic() - began

    def close(self, drain_s: float = 1.0) -> None:
        """Drain, close all connections, end the thread; a second call is harmless.

        Called by the service itself it returns at once, and all that happens beside the service.

        Args:
            drain_s: Seconds that open sessions may go on, a `lame_duck` before it included.
        """
        if self.loop.is_current:
            threading.Thread(target=self.close, args=(drain_s,), name="server-close").start()
            return
        with self._closing:
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
    """Host a service until a signal, then drain; for a program that does nothing else.

    Args:
        service: The service: see `Server`.
        **options: Options of `Server`.
        drain_s: Seconds that open sessions may go on after SIGTERM, SIGINT or SIGHUP; a second
            signal ends them.
        lame_duck_s: Seconds after SIGTERM in which `/ready` answers no while requests are still
            answered, so that load balancers notice; at most `drain_s`. Ctrl-C skips them.
        on_start: Called once the server listens, for example to print its addresses.

    Raises:
        PortInUseError: A port is taken; names it.
        ConfigError: The host is none of this machine, or a port may not be opened.
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
    """Call `start`, wait for SIGTERM, SIGINT or SIGHUP, then call what `start` returned.

    SIGHUP stays ignored where it was, as under `nohup`. A second signal ends the wait for that
    function. Call it from the main thread.

    Args:
        start: Starts to serve, and returns the function that stops.
        lame_duck: Called before stopping, but only after SIGTERM: after Ctrl-C somebody waits.
    """
    first, second = threading.Event(), threading.Event()
    received: list[int] = []

    def note(number: int, _: object) -> None:
        leave_closed_terminal()
        received.append(number)
        (second if first.is_set() else first).set()

    def close() -> None:
        try:
            if lame_duck is not None and received[0] == signal.SIGTERM:
                lame_duck()
            stop()
        except CancelledError:
            if not second.is_set():  # else the process ends, and the event loop before it
                raise

    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        stop = start()
        # Not for ever: a signal between Python's last look and its sleep would not wake it.
        while not first.wait(_LOOK_S):
            pass
        closing = threading.Thread(target=close, daemon=True)
        closing.start()
        while closing.is_alive() and not second.is_set():
            closing.join(0.05)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
