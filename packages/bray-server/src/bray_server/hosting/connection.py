"""Base class of a server's connections: flow control, time-outs, closing."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import sys
import termios
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, cast

from bray_core.errors import ServiceError
from bray_server.limits.access import Tokens
from bray_server.limits.byte_budget import UNCOUNTED_BYTES, ByteBudget
from bray_server.limits.client_shares import ClientShares, client_of
from bray_server.limits.limits import Limits
from bray_server.sessions.dispatcher import Dispatcher
from bray_server.sessions.pages import PageRequest, Pages
from bray_server.sessions.pending_request import PendingRequest
from bray_server.sessions.sessions import Sessions

_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
"""Settings of TCP keep-alive: a peer that vanished is noticed within a minute."""

_LINGER_S = 1.0
_MAX_LINGER_BYTES = 1024 * 1024


class ServerContext(Protocol):
    """The server, as its connections see it."""

    limits: Limits
    tokens: Tokens
    sessions: Sessions
    dispatcher: Dispatcher
    access_log: bool
    pages: Pages | None
    public_pages: frozenset[str]
    check_page: Callable[[PageRequest], None] | None
    connections: set[Connection]
    budget: ByteBudget
    shares: ClientShares
    """Number of connections of each client."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine until it ends or the server stops."""
        ...

    def take_delta(self) -> bool:
        """Return whether one more session may use delta encoding, and count it."""
        ...

    def give_back_delta(self) -> None:
        """Count one session with delta encoding less."""
        ...

    def snapshot(self) -> dict[str, Any]:
        """Return the metrics of this worker."""
        ...

    async def metrics(self) -> str:
        """Return the metrics of all workers as Prometheus text."""
        ...


class Connection(asyncio.Protocol, ABC):
    """A connection that reads no faster than its client reads replies, and ends if it stalls."""

    owns_sessions = False

    def __init__(self, host: ServerContext, *, is_worker: bool = False) -> None:
        self.host = host
        self.limits = host.limits
        self.is_worker = is_worker
        """Whether another worker of the group is at the other end."""
        self.peer = ""
        self.client = ""
        """Address of the client, by which its share is counted; empty for another worker."""
        self.is_lost = False
        self.is_lingering = False
        """Whether the connection is open only until the client has read that it was refused."""
        self._closing: asyncio.TimerHandle | None = None
        self._num_dropped_bytes = 0
        self.is_paused = False
        self.is_blocked = False
        """Whether the client does not read its replies."""
        self.waiting: set[asyncio.Task[None]] = set()
        """Tasks that wait for the answer to one of its requests."""
        self.num_under_way = 0
        """Requests that were handed to the dispatcher and have no reply yet."""
        self._held: list[PendingRequest] = []
        self._transport: asyncio.Transport | None = None
        self.partial_since: float | None = time.monotonic()
        """Time since which a request is incomplete, or the first one awaited; else None."""
        self.last_received = self.partial_since
        self._read_at = self.partial_since
        """Time when the client last read replies, or had none to read."""
        self._unsent_bytes = self._unread_bytes = 0
        self._budget = host.budget
        self._counted_bytes = 0
        """Bytes that the connection has of the budget, without its unsent replies."""
        self._counted_unsent_bytes = 0
        self.waits_for_room = False
        """Whether a body waits for room in the budget before it is received."""
        self._wanted_bytes = 0
        self._is_counted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start to serve the client, or refuse it where there are too many."""
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if self not in self.host.connections and not self.take_place(peer):
            self._transport.abort()
            return
        if self.host.access_log:
            self.peer = _name(peer)
        _keep_alive(transport.get_extra_info("socket"))

    def take_place(self, peer: Any) -> bool:
        """Take a place among the connections; False if there is none for the client."""
        connections = self.host.connections
        if not self.is_worker:
            client = client_of(peer)
            is_full = len(connections) >= self.limits.max_connections
            if is_full or not self.host.shares.take(client):
                self.host.sessions.metrics.refused_connections += 1
                return False
            self.client = client
            self._is_counted = True
        connections.add(self)
        return True

    def connection_lost(self, error: Exception | None) -> None:
        """Free everything that the connection holds."""
        self._transport = None
        self.is_lost = True
        if self._closing is not None:
            self._closing.cancel()
        self.host.connections.discard(self)
        if self._is_counted:
            self.host.shares.give(self.client)
        self._give_all()
        self._held.clear()
        for task in self.waiting:
            task.cancel()
        self.ended()

    # The budget of bytes in flight.

    def _begin_receiving(self, num_bytes: int) -> bool:
        """Count a body before it comes; if False, read no more before `admitted`.

        Raises:
            ServiceError: `overloaded`.
        """
        if self.is_worker or num_bytes <= UNCOUNTED_BYTES:  # its worker has waited for it
            return True
        if self._budget.begin(self, num_bytes):
            self._counted_bytes += num_bytes
            return True
        self.waits_for_room = True
        self._wanted_bytes = num_bytes
        return False

    def admitted(self) -> None:
        """Read on: there is room for the body that waited."""
        if not self.waits_for_room:  # it gave up just after it was admitted
            self._budget.give(self._wanted_bytes, self.client)
            return
        self.waits_for_room = False
        self._counted_bytes += self._wanted_bytes
        self.set_reading()

    def _stop_waiting(self) -> None:
        if self.waits_for_room:
            self.waits_for_room = False
            self._budget.leave(self)

    def _count(self, num_bytes: int) -> None:
        self._counted_bytes += num_bytes
        self._budget.count(num_bytes, self.client)

    def _give(self, num_bytes: int) -> None:
        if not self.is_lost:
            self._counted_bytes -= num_bytes
            self._budget.give(num_bytes, self.client)

    def _give_all(self) -> None:
        self._stop_waiting()
        self._budget.give(self._counted_bytes + self._counted_unsent_bytes, self.client)
        self._counted_bytes = self._counted_unsent_bytes = 0

    def _count_unsent(self) -> None:
        """Count the replies that the client has not read yet."""
        if self._transport is None or self.is_lost:
            return
        size = self._transport.get_write_buffer_size()
        unsent = size if size > UNCOUNTED_BYTES else 0
        if unsent != self._counted_unsent_bytes:
            more = unsent - self._counted_unsent_bytes
            if more > 0:
                self._budget.count(more, self.client)
            else:
                self._budget.give(-more, self.client)
            self._counted_unsent_bytes = unsent

    def _sendable(self, reply: Any) -> Any:
        """Return a reply, or an error if there is no room for a reply of its size."""
        num_bytes = len(reply)
        if num_bytes <= UNCOUNTED_BYTES or self._budget.fits(num_bytes):
            return reply
        error: ServiceError = self._budget.overloaded(num_bytes)
        self.host.sessions.metrics.count_error(error.code)
        return error

    def hold(self, item: PendingRequest) -> None:
        """Keep a request until the client reads its replies again."""
        self._held.append(item)

    @property
    def is_closing(self) -> bool:
        """Whether the connection can answer nothing more."""
        return self._transport is None or self.is_lingering or self._transport.is_closing()

    def session_ended(self, session: bytes) -> None:
        """Forget a session that was started here; by default there is nothing to forget."""

    def write(self, data: bytes) -> None:
        """Send data, if the client is still there."""
        if self._transport is not None:
            self._transport.write(data)

    def write_parts(self, head: bytes, body: bytes) -> None:
        """Send a head and a body without joining them."""
        if self._transport is not None:
            self._transport.writelines((head, body))

    def close(self) -> None:
        """Close the connection after what was written has been sent."""
        if self._transport is not None:
            self._transport.close()

    def server_stopped(self) -> None:
        """Close: what is not answered by now never will be."""
        self.close()

    def linger(self) -> None:
        """Close the connection once the client had time to read the last reply.

        A client may still be sending a request that was refused by its head: closed at once, the
        connection would be reset, and the client would lose the answer.
        """
        transport = self._transport
        if transport is None or self.is_closing:
            return
        if not transport.can_write_eof():
            transport.close()
            return
        self.is_lingering = True
        transport.write_eof()
        self._closing = asyncio.get_running_loop().call_later(_LINGER_S, self.close)

    def _drop(self, data: bytes) -> None:
        """Throw away data of a client that was refused."""
        self._num_dropped_bytes += len(data)
        if self._num_dropped_bytes > _MAX_LINGER_BYTES and self._transport is not None:
            self._transport.pause_reading()

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def check_time(self, now: float, late_s: float) -> None:
        """End the connection if it stalls; called now and then by the server.

        Args:
            now: Seconds of the monotonic clock.
            late_s: How much later than planned the server looks: so long it stood still itself,
                and what came meanwhile is not read yet. No client answers for that time.
        """
        if self._transport is None:
            return
        if late_s:
            self._read_at = min(now, self._read_at + late_s)
            self.last_received = min(now, self.last_received + late_s)
            if self.partial_since is not None:
                self.partial_since = min(now, self.partial_since + late_s)
        limits = self.limits
        self._count_unsent()
        before = self._unsent_bytes, self._unread_bytes
        self._unsent_bytes = self._transport.get_write_buffer_size()
        self._unread_bytes = _kernel_unread_bytes(self._transport) if self._unsent_bytes else 0
        is_read = self._unsent_bytes < before[0] or self._unread_bytes < before[1]
        if is_read or not self._unsent_bytes:
            self._read_at = now
        if now - self._read_at > limits.send_timeout_s:
            self.host.sessions.metrics.lost_slow_readers += 1
            self.abort()
        elif self.is_closing:
            pass  # its last words are on their way
        elif self.is_paused:
            pass  # what is not read cannot become whole
        elif self.partial_since is not None:
            if now - self.partial_since > limits.receive_timeout_s:
                self.refuse_slow()
        elif now - self.last_received > limits.idle_timeout_s and self.is_idle:
            self.close()

    def pause_writing(self) -> None:
        """Answer and read no more requests: the client does not read its replies."""
        self.is_blocked = True
        self._count_unsent()
        self.set_reading()

    def resume_writing(self) -> None:
        """Answer and read requests again: the client reads its replies."""
        self.is_blocked = False
        self._count_unsent()
        self._read_at = time.monotonic()
        held, self._held = self._held, []
        for item in held:
            self.host.dispatcher.put(item)
        self.set_reading()

    def set_reading(self) -> None:
        """Start or stop reading, by the state of the connection."""
        pause = self.is_blocked or self.is_too_busy
        if self._transport is None or self.is_closing or pause == self.is_paused:
            return
        self.is_paused = pause
        if pause:
            self._transport.pause_reading()
        else:
            if self.partial_since is not None:
                self.partial_since = time.monotonic()
            self._transport.resume_reading()

    @property
    @abstractmethod
    def is_too_busy(self) -> bool:
        """Whether to read no more for now."""

    @property
    @abstractmethod
    def is_idle(self) -> bool:
        """Whether it may be closed after the idle timeout."""

    @abstractmethod
    def refuse_slow(self) -> None:
        """Answer a request that takes too long to arrive, and close."""

    @abstractmethod
    def reply(self, item: PendingRequest, reply: Any) -> None:
        """Send the answer to a request that was put into the dispatcher."""

    @abstractmethod
    def ended(self) -> None:
        """Free what the connection of this protocol holds."""


def _kernel_unread_bytes(transport: asyncio.Transport) -> int:
    """Return the bytes in the kernel's send buffer; 0 where the kernel does not tell.

    The process's own buffer shrinks only once a third of the kernel's is free again, for which a
    slow reader needs minutes.
    """
    try:
        sock = transport.get_extra_info("socket")
        answer = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
    except (OSError, AttributeError, ValueError):
        return 0
    return int.from_bytes(answer, sys.byteorder)


def _name(address: Any) -> str:
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "local"


def _keep_alive(sock: Any) -> None:
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
