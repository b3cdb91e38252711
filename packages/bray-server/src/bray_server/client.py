"""The synchronous client: what a gamecore in Python calls with."""

from __future__ import annotations

import http.client
import itertools
import json
import socket
import time
from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from bray_core.errors import ConfigError, DeadlineError, ServiceError
from bray_server.address import Address
from bray_server.frames import Frame, FrameError, FrameParser, Kind, pack, unpack_error

RequestKind = Literal["start", "tick", "end", "call"]

KINDS = {"start": Kind.START, "tick": Kind.TICK, "end": Kind.END, "call": Kind.CALL}
_RECEIVE_BYTES = 256 * 1024
_MAX_REPLY_BYTES = 1 << 30
_MAX_SESSION_BYTES = 65535


class Request(NamedTuple):
    """One request of an `exchange`."""

    kind: RequestKind
    session: str
    body: bytes


Reply = bytes | ServiceError
"""What came back: a body, or the server's error."""


class _Transport(Protocol):
    def exchange(self, requests: Sequence[Request], timeout_s: float) -> list[Reply]: ...

    def close(self) -> None: ...


class Client:
    """Calls a server over one connection. Not thread-safe: one client a thread.

    Nothing is retried: a request whose connection breaks may have been answered or not, which
    only the caller can judge.

    Args:
        address: `tcp://host:port` or `http://host:port`.
        token: bearer token, if the server wants one.
        timeout_s: for connecting and for each call.

    Raises:
        ServiceError: `unreachable`: nothing listens there.
    """

    def __init__(self, address: str, token: str | None = None, timeout_s: float = 60.0) -> None:
        if timeout_s <= 0:
            raise ConfigError(f"timeout_s: expected more than 0, got {timeout_s}")
        self._timeout_s = timeout_s
        parsed = Address.parse(address)
        transport = _Tcp if parsed.scheme == "tcp" else _Http
        self._transport: _Transport = transport(parsed, token, timeout_s)

    def start(self, session: str, body: bytes = b"") -> bytes:
        """Start a session and return the reply.

        Raises:
            ServiceError: the server's error, `code` and `message`; `connection_lost` if it went.
            DeadlineError: no reply in time.
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

        Over TCP they are answered side by side, over HTTP one after the other.

        Raises:
            ServiceError: `connection_lost`; errors of single requests are in the list instead.
            DeadlineError: not all replies came in time; the connection is then closed.
        """
        return self._transport.exchange(requests, self._timeout_s)

    def close(self) -> None:
        """Close the connection; the server aborts the sessions started on it over TCP."""
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class _Tcp:
    def __init__(self, address: Address, token: str | None, timeout_s: float) -> None:
        self._address = address
        self._ids = itertools.count(1)
        self._parser = FrameParser(_MAX_REPLY_BYTES, _MAX_SESSION_BYTES)
        self._buffer = bytearray(_RECEIVE_BYTES)
        try:
            self._socket = socket.create_connection((address.host, address.port), timeout_s)
        except OSError as error:
            raise unreachable(address, error) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if token is not None:
            reply = self._await([pack(Kind.HELLO, 0, "", token.encode())], [0], timeout_s)[0]
            if isinstance(reply, ServiceError):
                self.close()
                raise reply

    def exchange(self, requests: Sequence[Request], timeout_s: float) -> list[Reply]:
        ids = [next(self._ids) & 0xFFFFFFFF for _ in requests]
        frames = [
            pack(KINDS[kind], request_id, session, body)
            for request_id, (kind, session, body) in zip(ids, requests, strict=True)
        ]
        return self._await(frames, ids, timeout_s)

    def _await(self, frames: list[bytes], ids: list[int], timeout_s: float) -> list[Reply]:
        if not ids:
            return []
        replies: dict[int, Reply] = {}
        waiting = set(ids)
        deadline = time.monotonic() + timeout_s
        try:
            self._socket.settimeout(timeout_s)
            self._socket.sendall(b"".join(frames))
            while waiting:
                for frame in self._receive(deadline):
                    replies[frame.request_id] = reply_of(frame)
                    waiting.discard(frame.request_id)
                    if frame.request_id not in ids:  # the connection's own error: it closes
                        raise _as_error(replies[frame.request_id])
        except TimeoutError:
            self.close()
            raise DeadlineError(
                f"{self._address}: {len(waiting)} of {len(ids)} replies missing after "
                f"{timeout_s:g} s"
            ) from None
        except (OSError, FrameError) as error:
            self.close()
            raise ServiceError("connection_lost", f"{self._address}: {error}") from error
        return [replies[request_id] for request_id in ids]

    def _receive(self, deadline: float) -> list[Frame]:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)
        size = self._socket.recv_into(self._buffer)
        if not size:
            raise ConnectionError("the server closed the connection")
        return list(self._parser.feed(memoryview(self._buffer)[:size]))

    def close(self) -> None:
        self._socket.close()


class _Http:
    def __init__(self, address: Address, token: str | None, timeout_s: float) -> None:
        self._address = address
        self._headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        self._connection = http.client.HTTPConnection(address.host, address.port, timeout_s)
        try:
            self._connection.connect()
        except OSError as error:
            raise unreachable(address, error) from error

    def exchange(self, requests: Sequence[Request], timeout_s: float) -> list[Reply]:
        return [self._request(request) for request in requests]

    def _request(self, request: Request) -> Reply:
        headers = dict(self._headers)
        if request.kind != "call":
            headers |= {"session": request.session, "step_kind": request.kind}
        try:
            self._connection.request("POST", "/step", request.body, headers)
            response = self._connection.getresponse()
            body = response.read()
        except TimeoutError:
            self.close()
            raise DeadlineError(f"{self._address}: no reply in time") from None
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise ServiceError("connection_lost", f"{self._address}: {error}") from error
        return body if response.status == 200 else http_error(response.status, body)

    def close(self) -> None:
        self._connection.close()


def http_error(status: int, body: bytes) -> ServiceError:
    """Return the error in a reply that is not 200, whatever its body holds."""
    try:
        error = json.loads(body)["error"]
        return ServiceError(str(error["code"]), str(error["message"]))
    except (ValueError, KeyError, TypeError):
        return ServiceError("bad_request", f"HTTP {status}: {body[:200]!r}")


def reply_of(frame: Frame) -> Reply:
    """Return what a reply or error frame says."""
    if frame.kind == Kind.ERROR:
        return ServiceError(*unpack_error(frame.body))
    return frame.body


def _as_error(reply: Reply) -> ServiceError:
    if isinstance(reply, ServiceError):
        return reply
    return ServiceError("bad_frame", "a reply to no request")


def unreachable(address: Address, error: OSError) -> ServiceError:
    """Return the error for a connection that could not be made."""
    return ServiceError("unreachable", f"nothing answers at {address}: {error.strerror or error}")
