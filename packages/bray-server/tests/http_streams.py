"""Random streams of HTTP requests, cut anywhere, and a transport that keeps what is answered."""

from __future__ import annotations

import asyncio
import random
import re
from typing import Any

from bray_core.errors import ServiceError
from bray_server import Server
from bray_server.hosting.http import HttpConnection

TOKEN = "secret"


class Moody:
    """A session that does as the first byte of a body says, and counts its ticks."""

    def __init__(self, session: str) -> None:
        self.ticks = 0

    async def start(self, body: bytes) -> bytes:
        return b"started"

    async def tick(self, body: bytes) -> Any:
        self.ticks += 1
        task, mood = asyncio.current_task(), body[:1]
        assert task is not None
        if mood == b"w":
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        elif mood == b"t":
            async with asyncio.timeout(30):
                await asyncio.sleep(0)
        elif mood == b"n":
            return None
        elif mood == b"f":
            raise ValueError("as asked")
        elif mood == b"s":
            raise ServiceError("not_ready", "as asked")
        elif mood == b"c":
            raise asyncio.CancelledError
        elif mood == b"l":
            return b"x" * 70_000
        assert asyncio.current_task() is task
        return b"%d:%b" % (self.ticks, body)

    async def end(self, body: bytes) -> bytes:
        return b"%d" % self.ticks


class MoodyCalls:
    """`Moody` without sessions."""

    def __init__(self) -> None:
        self.tick = Moody("").tick


class Wire(asyncio.Transport):
    """A transport without a socket: it keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.is_closed = False

    def write(self, data: Any) -> None:
        assert not self.is_closed
        self.sent += data

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.sent += b"<end>"

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


async def answers(server: Server, pieces: list[bytes], turns: list[int]) -> bytes:
    """Return what a connection answers to pieces that come so many turns of the loop apart."""
    wire, loop = Wire(), asyncio.get_running_loop()
    connection = HttpConnection(server)
    connection.connection_made(wire)

    def receive(piece: bytes) -> None:
        if not wire.is_closed:
            connection.data_received(piece)

    for piece, pause in zip(pieces, turns, strict=True):
        loop.call_soon(receive, piece)
        for _ in range(pause):
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    while server.sessions.num_running or not (wire.is_closed or connection.is_idle):  # noqa: ASYNC110
        await asyncio.sleep(0)
    connection.connection_lost(None)
    return plain(bytes(wire.sent)) + (b"<closed>" if wire.is_closed else b"")


def plain(replies: bytes) -> bytes:
    """Return replies without what differs from one time to another.

    An interim reply is sent only where nothing else is under way at that moment.
    """
    replies = replies.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")
    replies = re.sub(rb"Date: [^\r]*", b"Date: now", replies)
    return re.sub(rb"X-Request-Id: [0-9a-f]{16}\r", b"X-Request-Id: random\r", replies)


def counts(server: Server) -> dict[str, Any]:
    """Return a server's metrics, but how long it took."""
    kept = ("requests", "errors", "bytes_in", "bytes_out", "gauges")
    found = {name: value for name, value in server.snapshot().items() if name in kept}
    return {**found, "answers": sum(server.snapshot()["latency"])}


class Streams:
    """Makes streams of requests of which many have the head of the one before.

    Args:
        seed: Seed of its random numbers.
        has_sessions: Whether the service has sessions.
    """

    def __init__(self, seed: int, *, has_sessions: bool = True) -> None:
        self._random = random.Random(seed)
        self._has_sessions = has_sessions
        self._count = 0

    def stream(self) -> tuple[list[bytes], list[int]]:
        """Return the pieces of a stream, and the turns of the loop after each."""
        pick = self._random
        self._count += 1
        requests = self._requests(f"s{self._count}")
        pieces: list[bytes] = []
        for request in requests:
            if pick.random() < 0.15 and len(request) > 1:
                cut = pick.randrange(1, len(request))
                pieces += [request[:cut], request[cut:]]
            elif pick.random() < 0.15 and pieces:
                pieces[-1] += request
            else:
                pieces.append(request)
        return pieces, [pick.choice([0, 1, 1, 2, 5]) for _ in pieces]

    def _requests(self, session: str) -> list[bytes]:
        pick = self._random
        requests = [self._step("start", session, b"")] if self._has_sessions else []
        moods = pick.choice([b"e", b"e", _MOODS])
        for _ in range(pick.randrange(1, 8)):
            extra = [pick.choice(_HEADERS)] if pick.random() < 0.25 else []
            size = pick.choice([0, 1, 5, 5, 12])
            for _ in range(pick.randrange(1, 9)):
                body = (bytes([pick.choice(moods)]) + b"0123456789abc")[:size]
                requests.append(self._step("tick", session, body, *extra))
            if pick.random() < 0.3:
                requests.append(self._odd(session, requests[-1]))
            if pick.random() < 0.1 and self._has_sessions:
                requests += [self._step(kind, session, b"") for kind in ("end", "start")]
        return requests

    def _odd(self, session: str, last: bytes) -> bytes:
        """Return something else than a tick, often nearly the last one."""
        pick = self._random
        head, _, body = last.partition(b"\r\n\r\n")
        kind = pick.randrange(9)
        if kind == 0:  # one byte of the head is another
            at = pick.randrange(len(head))
            return last[:at] + bytes([pick.randrange(32, 127)]) + last[at + 1 :]
        if kind == 1:  # the length is another, the bytes are as many
            wrong = b"Content-Length: %d" % max(0, len(body) + pick.choice([-1, 1]))
            return re.sub(rb"Content-Length: \d+", wrong, last)
        if kind == 2:
            chunked = re.sub(rb"Content-Length: \d+", b"Transfer-Encoding: chunked", head)
            size = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            return chunked + b"\r\n\r\n" + size + b"0\r\n\r\n"
        if kind == 3:
            return b"\r\n" * pick.randrange(1, 3) + last
        if kind == 4:
            return pick.choice(_PAGES)
        if kind == 5:
            return last + last[: pick.randrange(1, 8)]  # the beginning of one that is broken off
        if kind == 6:
            return self._step("tick", session + "x", body)
        if kind == 7:
            return last.replace(b"Host: x", b"Connection: close")
        return last.replace(b"HTTP/1.1", b"HTTP/1.0")

    def _step(self, kind: str, session: str, body: bytes, *headers: str) -> bytes:
        lines = ["POST /step HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers]
        if self._has_sessions:
            lines += [f"step_kind: {kind}", f"session: {session}"]
        return "\r\n".join([*lines, "", ""]).encode() + body


_MOODS = b"eeeeeewtnfscl"
_HEADERS = [
    "X-Request-Id: mine", "Content-Type: application/json", "Expect: 100-continue",
    "Connection: keep-alive", "X-Other: " + "y" * 40, "X-Long: " + "z" * 1500, "X-Empty:",
    f"Authorization: Bearer {TOKEN}", "Authorization: Bearer wrong",
]  # fmt: skip
_PAGES = [
    b"GET /health HTTP/1.1\r\n\r\n",
    b"HEAD /health HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /ready HTTP/1.1\r\n\r\n",
    b"GET /nowhere HTTP/1.1\r\n\r\n",
    b"POST /health HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
    b"GET /step HTTP/1.1\r\n\r\n",
]
