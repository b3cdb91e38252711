"""The synchronous client, for gamecores in Python."""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from bray_core.errors import ConfigError, DeadlineError, ServiceError
from bray_core.json_body import JsonBody
from bray_core.settings.ranges import PositiveFloat, check_value
from bray_server.clients.delta_sessions import DeltaSessions
from bray_server.wire.address import Address
from bray_server.wire.frames import JSON, Frame, FrameParser, Kind, pack
from bray_server.wire.requests import (
    JSON_TYPE,
    KINDS,
    MAKES_WAY,
    MAX_REPLY_BYTES,
    MAX_SESSION_BYTES,
    RETRY_AFTER_S,
    Reply,
    Request,
    http_error,
    http_reply,
    not_ready,
    reply_of,
    unreachable,
)
from bray_server.wire.tls import client_tls_context

_RECEIVE_BYTES = 256 * 1024
_STALE_S = 1.0
"""Time after which an unused connection is checked before it is used."""


class _Transport(Protocol):
    def exchange(self, requests: Sequence[Request], timeout_s: float) -> list[Reply]: ...

    def close(self) -> None: ...


class Client:
    """Calls a server over one connection. Not thread-safe: use one per thread.

    A connection that was lost is made anew by the next call. Nothing that may have been answered is
    sent twice: whether to repeat a request whose connection broke, only the caller can judge.

    Args:
        address: Address of the server, `tcp://host:port` or `http://host:port`; with TLS
            `tcps://` or `https://`.
        token: Bearer token, if the server wants one.
        timeout_s: Seconds that connecting, and each call, may take.
        certificate_authority: PEM file to trust instead of the system's authorities, with TLS.
        delta: Whether to ask the server for delta encoding of ticks, over TCP: see
            `bray_server.wire.delta`.

    Raises:
        ServiceError: `unreachable`: nothing listens there.
        ConfigError: An argument is out of range.
    """

    def __init__(
        self,
        address: str,
        token: str | None = None,
        timeout_s: float = 60.0,
        *,
        certificate_authority: str | Path | None = None,
        delta: bool = False,
    ) -> None:
        check_value("timeout_s", timeout_s, PositiveFloat)
        self._timeout_s = timeout_s
        parsed = Address.parse(address)
        tls = client_tls_context(parsed, certificate_authority)
        if delta and not parsed.is_tcp:
            raise ConfigError(f"delta: offered over TCP only, got {parsed}")
        self._transport: _Transport = (
            _Tcp(parsed, token, timeout_s, tls, delta)
            if parsed.is_tcp
            else _Http(parsed, token, timeout_s, tls)
        )

    def start(self, session: str, body: bytes = b"") -> bytes:
        """Start a session and return the reply.

        Raises:
            ServiceError: The server's error with `code` and `message`, or `connection_lost`.
            DeadlineError: No reply in time.
        """
        return self._one(Request("start", session, body))

    def tick(self, session: str, body: bytes) -> bytes:
        """Send one tick and return the reply; errors as in `start`."""
        return self._one(Request("tick", session, body))

    def end(self, session: str, body: bytes = b"") -> bytes:
        """End a session and return the reply; errors as in `start`."""
        return self._one(Request("end", session, body))

    def call(self, body: bytes) -> bytes:
        """Call a stateless service; errors as in `start`."""
        return self._one(Request("call", "", body))

    def _one(self, request: Request) -> bytes:
        (reply,) = self.exchange([request])
        if isinstance(reply, ServiceError):
            raise reply
        return reply

    def exchange(self, requests: Sequence[Request]) -> list[Reply]:
        """Send many requests at once and gather their replies, in the order of the requests.

        Over TCP they are answered side by side, over HTTP one after the other. Those that are
        answered `not_ready` are sent again, until they are taken or the time is over.

        Raises:
            ServiceError: `connection_lost`; errors of single requests are in the list instead.
            DeadlineError: Not all replies came in time; the connection is then closed.
        """
        deadline = time.monotonic() + self._timeout_s
        replies = self._transport.exchange(requests, self._timeout_s)
        while waiting := not_ready(replies):
            left_s = deadline - time.monotonic() - RETRY_AFTER_S
            if left_s <= 0:
                break
            time.sleep(RETRY_AFTER_S)
            try:
                later = self._transport.exchange([requests[i] for i in waiting], left_s)
            except ServiceError as error:
                if error.code not in MAKES_WAY:
                    raise
                continue
            for index, reply in zip(waiting, later, strict=True):
                replies[index] = reply
        return replies

    def close(self) -> None:
        """Close the connection; the server aborts the sessions started on it over TCP."""
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class _Tcp:
    def __init__(
        self,
        address: Address,
        token: str | None,
        timeout_s: float,
        tls: ssl.SSLContext | None,
        delta: bool,
    ) -> None:
        self._address = address
        self._token = token
        self._tls = tls
        self._last_id = 0
        self._buffer = bytearray(_RECEIVE_BYTES)
        self._delta = DeltaSessions(delta)
        self._socket: socket.socket | None = None
        self._last_used_s = 0.0
        self._connect(timeout_s)

    def _connect(self, timeout_s: float) -> socket.socket:
        try:
            connected = connect(self._address, timeout_s, self._tls)
        except OSError as error:
            raise unreachable(self._address, error) from error
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected
        self._parser = FrameParser(MAX_REPLY_BYTES, MAX_SESSION_BYTES)
        self._delta.forget_all()
        if self._token is not None:
            hello = pack(Kind.HELLO, 0, "", self._token.encode())
            (reply,) = self._await([hello], [0], timeout_s)
            if isinstance(reply, ServiceError):
                self.close()
                raise reply
        return connected

    def exchange(self, requests: Sequence[Request], timeout_s: float) -> list[Reply]:
        if not requests:
            return []
        began = time.monotonic()
        if self._socket is not None and began - self._last_used_s > _STALE_S:
            self._close_if_stale()
        if self._socket is None:
            self._connect(timeout_s)
        replies = self._send(requests, began + timeout_s - time.monotonic())
        again = self._delta.to_repeat(requests, replies)
        if again:  # the server lost the thread of an encoding, before it did anything
            left = began + timeout_s - time.monotonic()
            repeated = self._send([requests[index] for index in again], left)
            for index, reply in zip(again, repeated, strict=True):
                replies[index] = reply
        self._last_used_s = time.monotonic()
        return replies

    def _close_if_stale(self) -> None:
        """Close a connection that the server has closed meanwhile."""
        assert self._socket is not None
        try:
            self._socket.setblocking(False)
            if isinstance(self._socket, ssl.SSLSocket) or self._socket.recv(1, socket.MSG_PEEK):
                return
        except BlockingIOError:
            return  # nothing to read: it lives
        except OSError:
            pass
        self.close()

    def _send(self, requests: Sequence[Request], timeout_s: float) -> list[Reply]:
        ids = [self._next_id() for _ in requests]
        frames = []
        for request_id, (kind, session, body) in zip(ids, requests, strict=True):
            encoded, flags = self._delta.encode(kind, session, body)
            if type(body) is JsonBody:
                flags |= JSON
            frames.append(pack(KINDS[kind], request_id, session, encoded, flags))
        return self._await(frames, ids, timeout_s)

    def _next_id(self) -> int:
        self._last_id = self._last_id % 0xFFFFFFFF + 1  # 0 is for what belongs to no request
        return self._last_id

    def _await(self, frames: list[bytes], ids: list[int], timeout_s: float) -> list[Reply]:
        assert self._socket is not None
        replies: dict[int, Reply] = {}
        waiting = set(ids)
        deadline = time.monotonic() + timeout_s
        try:
            self._socket.settimeout(max(timeout_s, 1e-6))
            self._socket.sendall(b"".join(frames))
            while waiting:
                for frame in self._receive(deadline):
                    request_id = frame[2]
                    replies[request_id] = reply = reply_of(frame)
                    if request_id not in waiting:  # the connection's own error: it closes
                        raise _as_error(reply)
                    waiting.discard(request_id)
                    self._delta.note_reply(frame)
        except TimeoutError:
            self.close()
            raise DeadlineError(
                f"{self._address}: {len(waiting)} of {len(ids)} replies missing after "
                f"{timeout_s:g} s"
            ) from None
        except OSError as error:
            self.close()
            raise ServiceError("connection_lost", f"{self._address}: {error}") from error
        except ServiceError:
            self.close()
            raise
        return [replies[request_id] for request_id in ids]

    def _receive(self, deadline: float) -> list[Frame]:
        assert self._socket is not None
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)
        size = self._socket.recv_into(self._buffer)
        if not size:
            raise ConnectionError("the server closed the connection")
        frames = self._parser.feed(bytes(memoryview(self._buffer)[:size]))
        if self._parser.error is not None and not frames:
            raise ConnectionError(str(self._parser.error))
        return frames

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class _Within(io.RawIOBase):
    """What a socket receives until a deadline; its own time-out is that of one read."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._socket = sock
        self._raw = sock.makefile("rb", buffering=0)  # keeps the socket open until it is closed
        self._deadline = deadline

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Http:
    def __init__(
        self, address: Address, token: str | None, timeout_s: float, tls: ssl.SSLContext | None
    ) -> None:
        self._address = address
        # http.client would write Latin-1; the protocol's text is UTF-8
        self._headers = {} if token is None else {"Authorization": _header(f"Bearer {token}")}
        self._tls = tls
        self._timeout_s = timeout_s
        self._connection = self._connect()

    def _connect(self) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(
            self._address.host, self._address.port, timeout=self._timeout_s
        )
        try:
            connection.sock = connect(self._address, self._timeout_s, self._tls)
        except OSError as error:
            raise unreachable(self._address, error) from error
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def exchange(self, requests: Sequence[Request], timeout_s: float) -> list[Reply]:
        deadline = time.monotonic() + timeout_s
        return [self._request(request, deadline) for request in requests]

    def _request(self, request: Request, deadline: float) -> Reply:
        headers = dict(self._headers)
        if request.kind != "call":
            headers["step_kind"] = request.kind
            headers["session"] = _header(request.session)
        if self._connection.sock is None or self._is_closed():
            self._connection.close()
            self._connection = self._connect()
        try:
            if type(request.body) is JsonBody:
                headers["Content-Type"] = JSON_TYPE
            self._connection.sock.settimeout(max(deadline - time.monotonic(), 1e-6))
            self._connection.request("POST", "/step", request.body, headers)
            body, response = self._receive(deadline)
        except TimeoutError:
            self.close()
            raise DeadlineError(f"{self._address}: no reply in time") from None
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise ServiceError("connection_lost", f"{self._address}: {error}") from error
        if response.status != 200:
            return http_error(response.status, body)
        return http_reply(body, response.getheader("Content-Type"))

    def _receive(self, deadline: float) -> tuple[bytes, http.client.HTTPResponse]:
        """Return the response's body, and the response."""
        within: Any = _Within(self._connection.sock, deadline)
        # By itself it would read from the socket, whose time-out begins anew with each piece.
        response_class: Any = lambda _, **how: http.client.HTTPResponse(within, **how)  # noqa: E731
        self._connection.response_class = response_class
        response = self._connection.getresponse()
        return response.read(), response

    def _is_closed(self) -> bool:
        """Return whether the server has closed the connection since the last request."""
        sock = self._connection.sock
        if isinstance(sock, ssl.SSLSocket):
            return False
        try:
            sock.setblocking(False)
            return not sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        self._connection.close()


def connect(address: Address, timeout_s: float, tls: ssl.SSLContext | None) -> socket.socket:
    """Return a connection, over TLS if asked for. Raises OSError."""
    plain = socket.create_connection((address.host, address.port), timeout_s)
    if tls is None:
        return plain
    try:
        return tls.wrap_socket(plain, server_hostname=address.host)
    except BaseException:
        plain.close()
        raise


def _header(session: str) -> str:
    """Return a session id whose Latin-1 bytes are its UTF-8 bytes.

    Raises:
        ServiceError: The id cannot be the value of a header.
    """
    if not session.isprintable() or session != session.strip():
        raise ServiceError(
            "bad_session", f"expected a session id that a header can hold, got {session[:100]!r}"
        )
    return session.encode().decode("latin-1")


def _as_error(reply: Reply) -> ServiceError:
    if isinstance(reply, ServiceError):
        return reply
    return ServiceError("bad_frame", "a reply to no request")
