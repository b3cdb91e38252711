"""Segments between nodes: one connection a producer and worker, received into their batches' rows.

    hello    producer → worker   magic, token
    push     producer → worker   rows n, how long to wait for room (ms), n × nbytes bytes
    answer   worker → producer   how many rows found room, how many more would (credits)

Numbers are little-endian. Who does not know the token is cut off before anything else is read.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import socket
import struct
import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial

import numpy as np

from bray_core.errors import ClosedError, ConfigError
from bray_core.layout import Block

logger = logging.getLogger(__name__)

_MAGIC = b"BRAYPSH1"
_PUSH = struct.Struct("<IIQ")
_ANSWER = struct.Struct("<II")
_MAX_PUSH_NBYTES = 1 << 30
_MAX_CONNECTIONS = 1024
_HELLO_TIMEOUT_S = 5.0
_STALLED_S = 60.0
"""A producer that stops in the middle of a push is cut off."""
_WAIT_FOR_EVER_MS = 2**32 - 1

Receive = Callable[[int, float, Callable[[Block], None]], tuple[int, int]]


class SegmentListener:
    """Takes pushes from other nodes.

    Args:
        host: Address to listen at.
        token: Secret that producers must send.
        nbytes: Size of a row.
        receive: Function that is called with the number of rows, the seconds to wait for room, and
            a function that reads rows into memory `[k, nbytes]`, to be called until all are read;
            it returns how many found room, and how many more would.
    """

    def __init__(self, host: str, token: str, nbytes: int, receive: Receive) -> None:
        self._token = token.encode()
        self._nbytes = nbytes
        self._take_in = receive
        self._socket = socket.create_server((host, 0))
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._accept, name="bray-listener", daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with self._lock:
                if len(self._connections) >= _MAX_CONNECTIONS:
                    connection.close()
                    continue
                self._connections.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(_HELLO_TIMEOUT_S)
            hello = bytes(_receive(connection, len(_MAGIC) + len(self._token)))
            if not hmac.compare_digest(hello, _MAGIC + self._token):
                logger.warning("buffer: a producer with a wrong token was refused")
                return
            self._answer_pushes(connection)
        except (OSError, ClosedError, ConfigError) as error:
            logger.info("buffer: a producer's connection ended: %s", error)
        except Exception:
            logger.exception("buffer: a producer's connection is cut")
        finally:
            with self._lock:
                self._connections.discard(connection)
            connection.close()

    def _answer_pushes(self, connection: socket.socket) -> None:
        while True:
            connection.settimeout(None)
            head = _receive(connection, _PUSH.size)
            connection.settimeout(_STALLED_S)
            count, wait_ms, nbytes = _PUSH.unpack(head)
            if nbytes != count * self._nbytes or not 0 < nbytes <= _MAX_PUSH_NBYTES:
                raise ConfigError(f"push: {count} rows of {self._nbytes} bytes, got {nbytes}")
            wait_s = 1e9 if wait_ms == _WAIT_FOR_EVER_MS else wait_ms / 1000
            answer = self._take_in(count, wait_s, partial(_read_into, connection))
            connection.sendall(_ANSWER.pack(*answer))

    def close(self) -> None:
        """Stop listening and cut every connection."""
        _cut(self._socket)
        self._thread.join()
        with self._lock:
            for connection in self._connections:
                _cut(connection)


class SegmentSender:
    """A producer's connection to a `SegmentListener`. Not thread-safe.

    Raises:
        OSError: nobody listens at the address.
    """

    def __init__(self, address: tuple[str, int], token: str) -> None:
        self._socket = socket.create_connection(address, _HELLO_TIMEOUT_S)
        weakref.finalize(self, self._socket.close)
        self._socket.settimeout(None)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(_MAGIC + token.encode())
        self._sent: deque[int] = deque()
        self.credits = 0
        """Rows that there was room for as of the last answer."""

    def send(self, rows: Block, wait_s: float | None) -> None:
        """Send rows `[n, nbytes]`, to be waited for with `settle`."""
        wait_ms = _WAIT_FOR_EVER_MS if wait_s is None else int(1000 * wait_s)
        head = _PUSH.pack(len(rows), min(wait_ms, _WAIT_FOR_EVER_MS), rows.nbytes)
        self._socket.sendall(head)
        self._socket.sendall(np.ascontiguousarray(rows).data.cast("B"))
        self._sent.append(len(rows))  # where sending failed, the caller keeps the rows

    def settle(self, keep: int) -> int:
        """Read answers until at most `keep` are due; return how many rows of them found room."""
        accepted = 0
        while len(self._sent) > keep:
            count, self.credits = _ANSWER.unpack(_receive(self._socket, _ANSWER.size))
            self._sent.popleft()
            accepted += count
        return accepted

    @property
    def unanswered(self) -> int:
        """Rows whose fate is not known."""
        return sum(self._sent)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def _receive(connection: socket.socket, nbytes: int) -> bytearray:
    data = bytearray(nbytes)
    _fill(connection, memoryview(data))
    return data


def _read_into(connection: socket.socket, rows: Block) -> None:
    _fill(connection, rows.data.cast("B"))


def _fill(connection: socket.socket, memory: memoryview) -> None:
    while memory:
        got = connection.recv_into(memory)
        if not got:
            raise ConnectionResetError("hung up")
        memory = memory[got:]


def _cut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # not connected any more
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
