"""The connection of a process to the hub of its launch: metrics, log records and queries.

Each process has one thread for it, and nothing else ever waits for it. It sends its window
when the hub polls, records of the log at once, and tries again where the hub is not reached:
windows are merged meanwhile, so that they take no more room.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import selectors
import socket
import threading
from collections import deque
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError

from bray_core import metrics
from bray_core.errors import CodecError, ConfigError, DeadlineError
from bray_core.metrics import hub_wire as wire
from bray_core.metrics.hub import ADDRESS
from bray_core.metrics.machine_metrics import MachineMetrics
from bray_core.metrics.process_metrics import ProcessMetrics
from bray_core.metrics.sample import Sample
from bray_core.process.log_handlers import attach_handler, detach_handler

_MAX_LINES = 1000
"""Number of log records that wait to be sent; older ones are dropped."""
_SEND_TIMEOUT_S = 10.0
_RETRY_S = 1.0
_QUERY_S = 10.0
_CLOSE_S = 2.0
_SAMPLES_A_FRAME = 256
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_ODD = re.compile(r"[{}=,\n]")


class Uplink:
    """The thread that talks to the hub. Made by `join`."""

    def __init__(self, address: str, component: str, rank: int) -> None:
        where, _, token = address.partition("/")
        host, _, port = where.rpartition(":")
        if not host or not port.isdigit() or not token:
            raise ConfigError(f"{ADDRESS}: expected host:port/token, got {where!r}")
        self.address, self.component, self.rank = address, component, rank
        self._where = host, int(port)
        self._hello = wire.Hello(token, component, rank, os.getpid())
        self._process_metrics = ProcessMetrics(metrics.registry(), component)
        # On the hub's own machine the hub records it; those of one machine record the same.
        is_elsewhere = host not in _LOOPBACK
        self._machine_metrics = MachineMetrics(metrics.registry()) if is_elsewhere else None
        self._lines: deque[wire.Line] = deque(maxlen=_MAX_LINES)
        self._queries: deque[wire.Query] = deque()
        self._answers: dict[int, Future[Sample]] = {}
        self._asked = 0
        self._closing = threading.Event()
        self._woken, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        self._handler = _Handler(self)
        attach_handler(self._handler)
        self._thread = threading.Thread(target=self._run, name="bray-uplink", daemon=True)
        self._thread.start()

    # Any thread.

    def query(self, name: str, window_s: float, labels: dict[str, str]) -> Sample:
        """Ask the hub for a metric. Raises DeadlineError: it does not answer."""
        answer: Future[Sample] = Future()
        self._asked += 1
        number = self._asked
        self._answers[number] = answer
        self._queries.append(wire.Query(number, name, float(window_s), labels))
        self._rouse()
        try:
            return answer.result(_QUERY_S)
        except FutureTimeoutError:
            raise DeadlineError(
                f"query: the hub of this launch did not answer within {_QUERY_S:g} s"
            ) from None
        finally:
            self._answers.pop(number, None)

    def log(self, line: wire.Line) -> None:
        """Send a log record soon."""
        if len(self._lines) == _MAX_LINES:
            metrics.record("metrics/dropped_lines", 1, kind="count")
        self._lines.append(line)
        self._rouse()

    def _rouse(self) -> None:
        with contextlib.suppress(OSError):  # full: it will wake anyway; closed: nobody is there
            self._wake.send(b"\0")

    def close(self) -> None:
        """Send what is left and end the thread."""
        self._closing.set()
        self._rouse()
        self._thread.join(_CLOSE_S)
        self.leave()

    def leave(self) -> None:
        """Remove the log handler, and close the sockets."""
        detach_handler(self._handler)
        self._woken.close()
        self._wake.close()

    # The thread.

    def _run(self) -> None:
        while True:
            try:
                with socket.create_connection(self._where, _SEND_TIMEOUT_S) as hub:
                    self._talk(hub)
            except (OSError, CodecError):
                pass  # the hub has gone, or is not there yet
            if self._closing.wait(_RETRY_S):
                return

    def _talk(self, hub: socket.socket) -> None:
        hub.settimeout(_SEND_TIMEOUT_S)
        hub.sendall(wire.encode(self._hello))
        self._send_waiting(hub)
        inbox = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(hub, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while not self._closing.is_set():
                ready = [key.fileobj for key, _ in selector.select()]
                if self._woken in ready:
                    self._woken.recv(4096)
                    self._send_waiting(hub)
                if hub in ready:
                    received = hub.recv(65536)
                    if not received:
                        return
                    inbox += received
                    self._take(hub, inbox)
        self._push(hub, 0)
        self._send_waiting(hub)

    def _take(self, hub: socket.socket, inbox: bytearray) -> None:
        """Act on the whole frames that have come."""
        while len(inbox) >= wire.HEADER.size:
            end = wire.HEADER.size + wire.frame_bytes(bytes(inbox[: wire.HEADER.size]))
            if len(inbox) < end:
                return
            message = wire.decode_to_worker(bytes(inbox[wire.HEADER.size : end]))
            del inbox[:end]
            if isinstance(message, wire.Poll):
                self._push(hub, message.id)
            elif (answer := self._answers.get(message.id)) is not None:
                answer.set_result(message.sample)

    def _push(self, hub: socket.socket, poll: int) -> None:
        self._process_metrics.record()
        if self._machine_metrics is not None:
            self._machine_metrics.record()
        for media in metrics.registry().take_media():
            hub.sendall(wire.encode(wire.Push(0, [], [media])))
        samples = metrics.drain()
        while len(samples) > _SAMPLES_A_FRAME:
            self._send_samples(hub, 0, samples)
        self._send_samples(hub, poll, samples)

    def _send_samples(self, hub: socket.socket, poll: int, samples: list[Sample]) -> None:
        """Send the first ones, and take them out of the list; if that fails all are kept."""
        try:
            hub.sendall(wire.encode(wire.Push(poll, samples[:_SAMPLES_A_FRAME], [])))
        except OSError:
            metrics.registry().restore(samples)
            raise
        del samples[:_SAMPLES_A_FRAME]

    def _send_waiting(self, hub: socket.socket) -> None:
        """Send what waits of the log, and queries."""
        lines = []
        while self._lines:
            lines.append(self._lines.popleft())
        if lines:
            hub.sendall(wire.encode(wire.Logged(lines)))
        while self._queries:
            hub.sendall(wire.encode(self._queries.popleft()))


class _Handler(logging.Handler):
    """Gives the records of all loggers to the uplink."""

    def __init__(self, uplink: Uplink) -> None:
        super().__init__(logging.INFO)
        self._uplink = uplink
        self.setFormatter(logging.Formatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Hand a record to the uplink; never raises, never waits."""
        try:
            text = self.format(record)[: 2**16]
            line = wire.Line(record.created, min(record.levelno, 100), record.name[:200], text)
        except Exception:  # noqa: BLE001  a boundary: what is wrong with a record is told by logging
            self.handleError(record)
            return
        self._uplink.log(line)


_joined: Uplink | None = None


def address() -> str | None:
    """Return the address of this launch's hub; None where there is no launch."""
    return os.environ.get(ADDRESS)


def join(component: str, rank: int = 0, hub: str | None = None) -> None:
    """Let this process report to the hub of its launch; harmless where there is none, or again.

    Args:
        component: What this process is, such as the name of its pool.
        rank: Number of this process among those of its component.
        hub: Address of the hub; None takes the one in the environment, which the driver's children
            inherit.

    Raises:
        ConfigError: The address is not valid.
    """
    global _joined
    hub = hub or address()
    if hub is None or (_joined is not None and _joined.address == hub):
        return
    leave()
    _joined = Uplink(hub, _ODD.sub("_", component)[:200] or "unknown", rank)
    os.environ[ADDRESS] = hub  # for the children of this process
    metrics.registry().elsewhere = _joined


def leave() -> None:
    """Send what is left and report no more; harmless where nothing was joined."""
    global _joined
    if _joined is not None:
        _joined.close()
        _joined = None
        metrics.registry().elsewhere = None


def _after_fork() -> None:
    """In a child: the thread stayed with the parent; join anew once something is recorded."""
    global _joined
    before, _joined = _joined, None
    registry = metrics.registry()
    registry.elsewhere = None
    component, rank = "driver", 0
    if before is not None:
        before.leave()
        component, rank = before.component, before.rank
    if address() is not None:
        registry.on_first = lambda: join(component, rank)


atexit.register(leave)
os.register_at_fork(after_in_child=_after_fork)
