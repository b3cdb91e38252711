"""Random and mutated frames and HTTP requests against a real server in a process of its own.

After 100,000 of them it must not have crashed, hung or grown, and a session that was open all the
while must not have noticed. The seed is fixed: what fails once fails again.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from server_services import Launch

from bray_core.errors import ServiceError
from bray_server import Client, Limits, Request, ServerThread
from bray_server.wire.frames import Kind, pack

NUM_FRAMES = int(os.environ.get("FUZZ_COUNT", "60000"))
NUM_REQUESTS = int(os.environ.get("FUZZ_COUNT", "50000"))
MAX_GROWTH_BYTES = 30_000_000


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def random_codec(rng: random.Random, depth: int = 3) -> bytes:
    """Return a value of the codec: nested, sometimes with a header that claims too much."""
    what = rng.randrange(10 if depth else 6)
    if what < 6:
        return rng.choice([
            b"\xc0", b"\x07", b"\xcb" + rng.randbytes(8), b"\xa2ab", b"\xc4\x02ab",
            b"\xd9\xff" + b"x" * 255, b"\xda\xff\xff" + rng.randbytes(20), b"\xdf\xff\xff\xff\xff",
            b"\xc7\x0e\x01\x03<f4\x01\x01\0\0\0" + rng.randbytes(5), b"\xd6\xff\0\0\0\0", b"\xc1",
            b"\xc7\x09\x01\x03|O8\x00" + bytes(4), b"\xc7\x09\x01\x03<f8\x01\xff\xff\xff\xff",
        ])  # fmt: skip
    count = rng.randrange(4)
    if what < 8:
        return bytes([0x90 + count]) + b"".join(random_codec(rng, depth - 1) for _ in range(count))
    pairs = [(b"\xa1" + rng.choice([b"a", b"b", b"\xff"]), random_codec(rng, depth - 1))
             for _ in range(count)]  # fmt: skip
    return bytes([0x80 + count]) + b"".join(key + value for key, value in pairs)


def random_frame(rng: random.Random) -> bytes:
    """Return a well-formed frame: any kind, any of a few sessions, any body."""
    kind = rng.choice([Kind.START, Kind.TICK, Kind.TICK, Kind.END, Kind.CALL, Kind.PING])
    session = rng.choice(["", "a", "b", "säule", "x" * 256, "\0", "../a", "a\r\nb: c"])
    flags = rng.random() < 0.1 and kind in (Kind.START, Kind.TICK)
    body = random_codec(rng) if rng.random() < 0.5 else rng.randbytes(rng.randrange(40))
    return pack(kind, rng.randrange(1 << 32), session, body, flags)


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Return data with a few bytes changed, cut out, doubled or put in."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(changed) + 1)
        what = rng.randrange(4)
        if what == 0:
            changed[at : at + 1] = bytes([rng.randrange(256)])
        elif what == 1:
            del changed[at : at + rng.randint(1, 8)]
        elif what == 2:
            changed[at:at] = changed[max(0, at - 8) : at]
        else:
            changed[at:at] = rng.randbytes(rng.randint(1, 8))
    return bytes(changed)


def random_request(rng: random.Random) -> bytes:
    """Return an HTTP request that is nearly right."""
    body = rng.randbytes(rng.randrange(40))
    lines = [
        rng.choice(["POST", "POST", "POST", "GET", "PUT", "HEAD", "OPTIONS"])
        + rng.choice([" /step", " /step", "/step", " /metrics", " /health", " /x?y=z", " http://h/"])
        + rng.choice([" HTTP/1.1", " HTTP/1.1", " HTTP/1.0", " HTTP/2.0", ""]),
        f"Content-Length: {rng.choice([len(body), len(body), len(body), 0, 10**6, -1])}",
        rng.choice(["Host: x", "Host: x", "Host: x", "Host: x", "host:", "X: y"]),
        f"step_kind: {rng.choice(['start', 'tick', 'end', 'stop', 'jump', ''])}",
        f"session: {rng.choice(['a', 'b', '', 'x' * 300, '../../b'])}",
        rng.choice(["Connection: close", "Connection: keep-alive", "Expect: 100-continue",
                    "Transfer-Encoding: chunked", "Upgrade: websocket", "X-Request-Id: 7",
                    "Authorization: Bearer x", ": :"]),
    ]  # fmt: skip
    if rng.random() < 0.3:
        lines[1] = rng.choice(["Transfer-Encoding: chunked", "transfer-encoding:  CHUNKED"])
        body = chunks(body, rng)
    return "\r\n".join([*lines, "", ""]).encode() + body


def chunks(body: bytes, rng: random.Random) -> bytes:
    """Return a body in chunks, some with extensions, and trailers that look like headers."""
    extension = rng.choice([b"", b"", b";a=b", b";" + b"x" * rng.randrange(300), b" ", b"\t;"])
    pieces = [body[at : at + 7] for at in range(0, len(body), 7)] * rng.randint(0, 3)
    sent = b"".join(b"%x%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in pieces)
    names = [
        b"session: b",
        b"step_kind: start",
        b"Content-Length: 5",
        b"a: b",
        b"Connection: close",
    ]
    trailers = b"".join(rng.choice(names) + b"\r\n" for _ in range(rng.choice([0, 0, 1, 3, 40])))
    return sent + rng.choice([b"0\r\n", b"0\r\n", b"0;x\r\n", b"00\r\n", b""]) + trailers + b"\r\n"


def batches(
    rng: random.Random, make: Callable[[random.Random], bytes], count: int, most: int
) -> Iterator[bytes]:
    """Yield what one connection sends: many that are right, then one that is not."""
    while count > 0:
        size = min(rng.randint(1, most), count)
        count -= size
        good = b"".join(make(rng) for _ in range(size - 1))
        yield good + mutated(make(rng), rng)


def send(address: str, data: bytes) -> None:
    """Send from a client that reads what comes, and goes without waiting for all of it."""
    host, _, port = address.partition("://")[2].rpartition(":")
    with socket.create_connection((host, int(port)), 5) as raw:
        raw.settimeout(5)
        with contextlib.suppress(OSError):
            raw.sendall(data)
            raw.shutdown(socket.SHUT_WR)
            while raw.recv(1 << 16):
                pass


@pytest.mark.long
def test_a_hundred_thousand_frames_and_requests(launch: Launch) -> None:
    rng = random.Random(20261121)
    limits = {"max_body_bytes": 100_000, "idle_timeout_s": 600.0, "max_sessions": 50}
    process, addresses = launch("Reader", http_port=0, limits=limits)
    with Client(addresses[0], timeout_s=10) as witness:
        witness.start("witness")
        ticks = 0
        for address, make, count, most in (
            (addresses[0], random_frame, NUM_FRAMES, 40),
            (addresses[1], random_request, NUM_REQUESTS, 6),  # the first bad one ends it
        ):
            for data in batches(rng, make, count // 10, most):
                send(address, data)
            before = rss_bytes(process.pid)
            for data in batches(rng, make, count, most):
                send(address, data)
                ticks += 1
                assert witness.tick("witness", b"") == str(ticks).encode()
            assert rss_bytes(process.pid) - before < MAX_GROWTH_BYTES
        replies = witness.exchange([Request("start", f"s{number}", b"") for number in range(10)])
        assert not any(isinstance(reply, ServiceError) for reply in replies)
    assert process.poll() is None


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    from server_services import Counter

    hosted = ServerThread(Counter, limits=Limits(max_sessions=3, idle_timeout_s=600))
    yield hosted
    hosted.close(0)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_order_of_requests_is_answered_as_a_model_says(
    server: ServerThread, data: st.DataObject
) -> None:
    """Start, tick and end in any order over a few sessions: exactly one of them is right."""
    ticks: dict[str, int] = {}
    with Client(server.addresses[0]) as client:
        prefix = f"{id(data)}-{data.draw(st.integers(0, 10**9))}-"
        steps = data.draw(st.lists(st.tuples(st.sampled_from("ste"), st.sampled_from("abcd"))))
        for step, letter in steps:
            session = prefix + letter
            try:
                if step == "s":
                    client.start(session)
                    assert session not in ticks
                    assert len(ticks) < 3
                    ticks[session] = 0
                elif step == "t":
                    ticks[session] = ticks.get(session, 0) + 1
                    assert client.tick(session, b"") == str(ticks[session]).encode()
                else:
                    client.end(session)
                    del ticks[session]
            except ServiceError as error:
                if error.code == "session_exists":
                    assert (step, session in ticks) == ("s", True)
                elif error.code == "too_many_sessions":
                    assert step == "s"
                else:
                    assert error.code == "unknown_session"
                    assert ticks.pop(session, 1) == 1, "the tick that was not to be"
        for session in ticks:
            client.end(session)
