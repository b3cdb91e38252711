"""What a server holds of its clients is bounded: bytes in flight, shares of tables, log lines."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from server_services import Counter, Echo

from bray_core.errors import ConfigError, ServiceError
from bray_server import AsyncClient, Client, Limits, Server, ServerThread
from bray_server.hosting.access_log import log_request
from bray_server.limits.bounded_log import BoundedLog
from bray_server.limits.byte_budget import ByteBudget
from bray_server.limits.client_shares import ClientShares, client_of
from bray_server.wire.delta import DeltaDecoder, DeltaEncoder
from bray_server.wire.frames import DELTA, HEADER, MAGIC, FrameParser, Kind, pack, unpack_error

KIB = 1024


class Waiter:
    def __init__(self, client: str = "") -> None:
        self.client = client
        self.is_admitted = asyncio.Event()

    def admitted(self) -> None:
        self.is_admitted.set()


async def test_a_budget_admits_in_order_and_one_that_is_alone_always() -> None:
    budget = ByteBudget(100)
    large, small, third = Waiter(), Waiter(), Waiter()
    assert budget.begin(large, 1000), "nothing else is there"
    assert not budget.begin(small, 10)
    assert not budget.begin(third, 95)
    assert not budget.fits(1)
    budget.give(1000)
    await small.is_admitted.wait()
    assert not third.is_admitted.is_set(), "10 and 95 are more than 100"
    assert budget.fits(90)
    assert not budget.fits(91)
    assert budget.fits(91, own_bytes=10), "alone but for itself"
    budget.give(10)
    await third.is_admitted.wait()
    assert budget.used_bytes == 95
    assert budget.take_peak() == 1000
    assert budget.take_peak() == 95


async def test_who_goes_lets_those_behind_it_in_and_not_all_may_wait() -> None:
    budget = ByteBudget(100)
    assert budget.begin(Waiter(), 90)
    first, second = Waiter(), Waiter()
    assert not budget.begin(first, 50)
    assert not budget.begin(second, 10)
    budget.leave(first)
    await second.is_admitted.wait()
    for _ in range(64):
        assert not budget.begin(Waiter(), 50)
    with pytest.raises(ServiceError, match="overloaded: no room for 50 bytes: 100 of 100 are in"):
        budget.begin(Waiter(), 50)


async def test_a_client_has_its_share_of_the_budget_and_others_pass_it() -> None:
    budget = ByteBudget(100, share=0.9)
    assert budget.begin(Waiter("greedy"), 80)
    waits = [Waiter("greedy") for _ in range(58)]
    for waiter in waits:
        assert not budget.begin(waiter, 15)
    with pytest.raises(ServiceError, match="overloaded"):
        budget.begin(Waiter("greedy"), 15)
    assert budget.begin(Waiter("modest"), 20), "though others came before"
    large, late = Waiter("large"), Waiter("late")
    assert not budget.begin(large, 95), "there is no room"
    assert not budget.begin(late, 1), "one that waits for room is next"
    budget.give(20, "modest")
    assert budget.used_bytes == 80
    budget.give(80, "greedy")
    await late.is_admitted.wait()
    assert large.is_admitted.is_set()
    assert not waits[0].is_admitted.is_set(), "it was passed over, and others are next"
    budget.give(95, "large")
    await waits[5].is_admitted.wait()
    assert not waits[6].is_admitted.is_set()
    assert budget.used_bytes == 91


class Gate(Echo):
    """Answers `wait…` when the gate is opened."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.entered = asyncio.Event()

    async def tick(self, body: bytes) -> bytes:
        if body.startswith(b"wait"):
            self.entered.set()
            await self.opened.wait()
        return await super().tick(body[:20])


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110  the server tells nobody
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("scheme", ["tcp", "http"])
async def test_a_large_body_waits_unread_until_there_is_room(scheme: str) -> None:
    gate = Gate()
    limits = Limits(max_bytes_in_flight=1200 * KIB)
    server = Server(gate, http_port=0, limits=limits)
    await server.start()
    (address,) = [a for a in server.addresses if a.startswith(scheme)]
    large = b"wait" + bytes(1000 * KIB)
    async with contextlib.AsyncExitStack() as stack:
        one, two, three = [
            await stack.enter_async_context(await AsyncClient.connect(address)) for _ in range(3)
        ]
        first = asyncio.create_task(one.call(large))
        await gate.entered.wait()
        second = asyncio.create_task(two.call(large))
        await until(lambda: len(server.budget._waiting) == 1)
        assert await three.call(b"small") == b"small", "others go on"
        gate.opened.set()
        assert await first == await second == large[:20]
    await until(lambda: server.budget.used_bytes == 0)
    await server.stop(0)


@pytest.mark.parametrize("scheme", ["tcp", "http"])
def test_bodies_that_are_announced_and_never_sent_hold_up_nobody_else(scheme: str) -> None:
    server = ServerThread(Echo(), http_port=0)
    (address,) = [a for a in server.addresses if a.startswith(scheme)]
    size = 16 * 1024 * KIB
    head = b"POST /step HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % size
    if scheme == "tcp":
        head = HEADER.pack(MAGIC, Kind.CALL, 0, 0, 1, size)
    with contextlib.ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(connect(address)).sendall(head)
        other = stack.enter_context(connect(address, "127.0.0.2"))
        other.settimeout(5)
        body = bytes(200 * KIB)
        data = b"POST /step HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        other.sendall(pack(Kind.CALL, 1, "", body) if scheme == "tcp" else data)
        received = 0
        while received < len(body):
            received += len(other.recv(65536))
    server.close(0)


@pytest.mark.parametrize("scheme", ["tcp", "http"])
async def test_who_goes_gives_its_bytes_back(scheme: str) -> None:
    gate = Gate()
    limits = Limits(max_bytes_in_flight=400 * KIB, receive_timeout_s=0.8)
    server = Server(gate, http_port=0, limits=limits)
    await server.start()
    port = server.tcp_port if scheme == "tcp" else server.http_port
    body = b"wait" + bytes(300 * KIB)
    http = b"POST /step HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    data = pack(Kind.CALL, 1, "", body) if scheme == "tcp" else http
    for sent in (data, data[:-1], data[: 100 * KIB]):  # answered, almost whole, begun
        gate.entered.clear()
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        await writer.drain()
        await until(lambda: server.budget.used_bytes > 300 * KIB)
        writer.transport.abort()
        await until(lambda: server.budget.used_bytes == 0)
    await server.stop(0)


def test_a_reply_without_room_is_not_sent() -> None:
    limits = Limits(max_bytes_in_flight=1000 * KIB, send_timeout_s=60)
    server = ServerThread(Echo(), http_port=0, limits=limits)
    with contextlib.ExitStack() as stack:
        # Replies of 900 KB and of 8 MB lie in sockets that nobody reads: the second is alone.
        deaf = stack.enter_context(connect(server.addresses[0]))
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.sendall(pack(Kind.CALL, 1, "", b"times 20000000"))
        deadline = time.monotonic() + 10
        while server._server.budget.used_bytes < 1000 * KIB:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for address in server.addresses:
            client = stack.enter_context(Client(address))
            with pytest.raises(ServiceError, match="overloaded: no room for 500000 bytes"):
                client.call(b"times 500000")
            assert client.call(b"times 50000") == b"x" * 50_000, "usual replies go on"
        deaf.close()
        while server._server.budget.used_bytes:
            assert time.monotonic() < deadline + 10
            time.sleep(0.01)
        assert client.call(b"times 500000") == b"x" * 500_000
    server.close(0)


def connect(address: str, source: str = "127.0.0.1") -> socket.socket:
    host, _, port = address.partition("://")[2].rpartition(":")
    return socket.create_connection((host, int(port)), 10, source_address=(source, 0))


def read_all(raw: socket.socket) -> bytes:
    received = b""
    while data := raw.recv(65536):
        received += data
    return received


@pytest.fixture(scope="module")
def guarded() -> Iterator[ServerThread]:
    server = ServerThread(Echo(), http_port=0, tokens=["secret"])
    yield server
    server.close(0)


def test_a_token_is_asked_for_before_a_body_is_sent(guarded: ServerThread) -> None:
    for head in (
        b"POST /step HTTP/1.1\r\nContent-Length: 9999999\r\n\r\n",
        b"POST /step HTTP/1.1\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n",
        b"POST /step HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"fff\r\n%b\r\n" % bytes(4095) * 17,
        b"POST /metrics HTTP/1.1\r\nContent-Length: 9999999\r\n\r\n",
    ):
        with connect(guarded.addresses[1]) as raw:
            raw.sendall(head)
            assert read_all(raw).startswith(b"HTTP/1.1 401"), head
    tick = pack(Kind.TICK, 7, "s", bytes(100_000))
    for data in (tick, tick[: HEADER.size], HEADER.pack(MAGIC, Kind.HELLO, 0, 0, 7, 100_000)):
        with connect(guarded.addresses[0]) as raw:
            raw.sendall(data)
            ((kind, _, request_id, _, body),) = FrameParser(1 << 20, 99).feed(read_all(raw))
            assert (kind, request_id, unpack_error(body)[0]) == (Kind.ERROR, 7, "unauthorized")


def test_a_small_body_without_the_token_leaves_the_connection(guarded: ServerThread) -> None:
    wrong = b"POST /step HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody"
    right = wrong.replace(
        b"\r\n\r\n", b"\r\nAuthorization: Bearer secret\r\nConnection: close\r\n\r\n"
    )
    with connect(guarded.addresses[1]) as raw:
        raw.sendall(wrong + right)
        received = read_all(raw)
    assert received.startswith(b"HTTP/1.1 401")
    assert received.endswith(b"\r\n\r\nbody")


def test_hello_and_requests_may_come_in_one_piece(guarded: ServerThread) -> None:
    hello = pack(Kind.HELLO, 1, "", b"secret")
    data = hello + pack(Kind.CALL, 2, "", bytes(100_000)) + pack(Kind.CALL, 3, "", b"x")
    for cut in (len(hello) - 1, len(hello), len(hello) + 1, len(data) - 1):
        parser, replies = FrameParser(1 << 20, 99), []
        with connect(guarded.addresses[0]) as raw:
            raw.sendall(data[:cut])
            raw.sendall(data[cut:])
            while len(replies) < 3:
                replies += parser.feed(raw.recv(65536))
        assert [(reply[2], len(reply[4])) for reply in replies] == [(1, 0), (2, 100_000), (3, 1)]


def test_a_client_that_sends_all_of_a_refused_body_reads_why() -> None:
    server = ServerThread(Echo(), http_port=0, limits=Limits(max_body_bytes=1000))
    body = bytes(600_000)
    with connect(server.addresses[1]) as raw:
        raw.sendall(b"POST /step HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body))
        raw.sendall(body)
        assert read_all(raw).startswith(b"HTTP/1.1 413")
    with connect(server.addresses[0]) as raw:
        raw.sendall(pack(Kind.CALL, 1, "", body))
        assert b"body_too_large" in read_all(raw)
    server.close(0)


def test_a_refused_connections_sessions_end_before_the_client_has_gone() -> None:
    server = ServerThread(Counter)
    with connect(server.addresses[0]) as raw, Client(server.addresses[0]) as other:
        raw.sendall(pack(Kind.START, 1, "s", b"") + b"no frame" * 10)
        assert b"bad_frame" in read_all(raw)
        with pytest.raises(ServiceError, match="unknown_session"):
            other.tick("s", b"")
    server.close(0)


def test_a_half_closed_client_gets_its_replies() -> None:
    server = ServerThread(Counter, http_port=0)
    start = b"POST /step HTTP/1.1\r\nsession: s\r\nstep_kind: start\r\n\r\n"
    slow = start.replace(b"start", b"tick").replace(b"\r\n\r\n", b"\r\nContent-Length: 9\r\n\r\n")
    for tail in (b"", start[:20]):  # the second is cut off: the others are answered all the same
        with connect(server.addresses[1]) as raw:
            raw.sendall(start + slow + b"sleep 0.1" + slow + b"sleep .05" + tail)
            raw.shutdown(socket.SHUT_WR)
            received = read_all(raw)
        assert received.count(b"HTTP/1.1 ") == 3
        assert received.endswith(b"2" if not tail else b"4")
        assert b" 500 " not in received
    with connect(server.addresses[1]) as raw:
        raw.shutdown(socket.SHUT_WR)
        assert read_all(raw) == b""
    server.close(0)


def test_pipelined_requests_are_no_long_headers() -> None:
    """More than the limit of headers in one piece, whose last head is cut."""
    server = ServerThread(Echo(), http_port=0, limits=Limits(max_header_bytes=2000))
    request = b"POST /step HTTP/1.1\r\nX: " + b"x" * 100 + b"\r\nContent-Length: 2\r\n\r\nok"
    for cut in (1, 60, 130, len(request) - 1):
        with connect(server.addresses[1]) as raw:
            raw.sendall(request * 40 + request[:cut])
            raw.sendall(request[cut:] + request.replace(b"X:", b"Connection: close\r\nX:"))
            received = read_all(raw)
        assert received.count(b"HTTP/1.1 200") == 42
        assert received.count(b"HTTP/1.1 ") == 42
    server.close(0)


def test_thousands_of_pipelined_requests_are_answered_in_order() -> None:
    server = ServerThread(Echo(), http_port=0)
    requests = [
        b"POST /step HTTP/1.1\r\nContent-Length: %d\r\n\r\n%d" % (len(str(n)), n)
        for n in range(4000)
    ]
    requests[-1] = requests[-1].replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    for half_closes in (False, True):
        with connect(server.addresses[1]) as raw:
            raw.sendall(b"".join(requests))
            if half_closes:
                raw.shutdown(socket.SHUT_WR)
            received = read_all(raw)
        replies = [part.partition(b"\r\n\r\n")[2] for part in received.split(b"HTTP/1.1 200 OK")]
        assert replies[1:] == [b"%d" % n for n in range(4000)]
    server.close(0)


def test_trailers_say_nothing() -> None:
    server = ServerThread(Counter, http_port=0)
    head = b"POST /step HTTP/1.1\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n"
    trailers = b"0\r\nsession: forged\r\nstep_kind: start\r\nauthorization: Bearer x\r\n\r\n"
    for body in (b"", b"3\r\nabc\r\n"):
        with connect(server.addresses[1]) as raw:
            raw.sendall(head + b"\r\n" + body + trailers)
            assert b"the headers `session` and `step_kind`: start, tick or end" in read_all(raw)
        with connect(server.addresses[1]) as raw:
            raw.sendall(head + b"session: own\r\nstep_kind: start\r\n\r\n" + body + trailers)
            assert read_all(raw).startswith(b"HTTP/1.1 200")
        with Client(server.addresses[1]) as client:
            assert client.tick("own", b"") == b"1"
            client.end("own")
    server.close(0)


def test_one_client_leaves_the_last_part_to_others() -> None:
    limits = Limits(max_sessions=100, max_connections=40)
    server = ServerThread(Counter, http_port=0, limits=limits)
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(Client(server.addresses[0]))
        for number in range(90):
            client.start(str(number))
        with pytest.raises(
            ServiceError, match=r"too_many_sessions: 90 sessions of 127\.0\.0\.1 are open, a client"
        ):
            client.start("more")
        for _ in range(35):
            stack.enter_context(connect(server.addresses[1]))
        with connect(server.addresses[1]) as refused, contextlib.suppress(ConnectionError):
            assert read_all(refused) == b""
        other = stack.enter_context(connect(server.addresses[1], "127.0.0.2"))
        other.sendall(b"POST /step HTTP/1.1\r\nsession: other\r\nstep_kind: start\r\n")
        other.sendall(b"Connection: close\r\n\r\n")
        assert read_all(other).startswith(b"HTTP/1.1 200")
        client.end("3")
        client.start("more")
    server.close(0)


def test_shares_count_by_address() -> None:
    shares = ClientShares(100, 0.5)
    assert all(shares.take("a") for _ in range(50))
    assert not shares.take("a")
    assert shares.take("b")
    assert all(shares.take("") for _ in range(1000)), "other workers"
    shares.give("a")
    assert shares.take("a")
    assert ClientShares(31, 0.5).max_places == 31, "so few are counted by whoever sets them"
    assert client_of(("10.0.0.1", 80)) == client_of(("::ffff:10.0.0.1", 80, 0, 0)) == "10.0.0.1"
    assert client_of(("2001:db8::1", 80, 0, 0)) == client_of(("2001:db8::ffff", 81, 0, 0))
    assert client_of(("2001:db8::1", 80, 0, 0)) != client_of(("2001:db8:0:1::1", 80, 0, 0))
    assert client_of(("fe80::1%eth0", 80, 0, 2)) == "fe80::"
    assert client_of("") == "", "a Unix socket"
    with pytest.raises(ConfigError, match="max_client_share: expected more than 0 and at most 1"):
        Limits(max_client_share=1.1)


class Rude(Counter):
    async def tick(self, body: bytes) -> bytes:
        raise ValueError(f"cannot do {body.decode()}")


FORGED = "s\nERROR forged \x1b[2J\u202e"


def test_logs_are_bounded_and_not_forged(caplog: pytest.LogCaptureFixture) -> None:
    server = ServerThread(Rude)
    with Client(server.addresses[0]) as client:
        client.start(FORGED)
        for _ in range(200):
            with pytest.raises(ServiceError, match="service_error: ValueError: cannot do"):
                client.tick(FORGED, FORGED.encode())
    server.close(0)
    lines = [r.getMessage() for r in caplog.records if r.name.startswith("bray")]
    assert 20 <= len(lines) <= 60, "one a second and those who count the others"
    assert r"session 's\nERROR forged \x1b[2J\u202e': cannot do s\nERROR" in lines[0]
    assert "\n  ValueError: cannot do s" in lines[0], "with its stack"
    assert all(line.isprintable() for line in "\n".join(lines).split("\n"))
    log = logging.getLogger("bray_server.test")
    bounded = BoundedLog(log)
    caplog.clear()
    for _ in range(100):
        bounded.error("again")
    bounded.flush()
    assert "80 more errors of requests were not logged" in caplog.messages


def test_the_access_log_escapes(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "bray_server.access"):
        for session in (FORGED, "\x9b2J", "säule"):
            log_request(
                peer="", request_id="-", kind=2, session=session.encode(), path="",
                received_bytes=0, reply=b"", elapsed_s=0.0,
            )  # fmt: skip
    lines = [r.getMessage() for r in caplog.records if r.name.startswith("bray")]
    assert all(line.isprintable() for line in lines)
    assert [json.loads(line)["session"] for line in lines] == [FORGED, "\x9b2J", "säule"]
    assert "säule" in lines[2]


def test_a_long_error_is_cut() -> None:
    class Wordy(Counter):
        async def tick(self, body: bytes) -> bytes:
            if body:
                raise ServiceError("bad_request", "x" * 10**6)
            raise ValueError("y" * 10**6)

    server = ServerThread(Wordy)
    with Client(server.addresses[0]) as client:
        client.start("s")
        for body in (b"", b"own"):
            with pytest.raises(ServiceError) as caught:
                client.tick("s", body)
            assert len(caught.value.message) < 3000
    server.close(0)


def test_encoded_bodies_count_as_what_they_become() -> None:
    """A few bytes that become 8 MB, a hundred times in one piece."""
    limits = Limits(max_bytes_in_flight=100_000, max_requests_per_connection=200)
    server = ServerThread(Gated, limits=limits)
    encoder = DeltaEncoder(1 << 24)
    body = b"hold" + bytes(8_000_000)
    ticks = b"".join(pack(Kind.TICK, n, "s", encoder.encode(body), DELTA) for n in range(2, 102))
    parser = FrameParser(1 << 20, 99)
    with connect(server.addresses[0]) as raw:
        raw.sendall(pack(Kind.START, 1, "s", b"", DELTA) + ticks)
        frames: list[Any] = []
        while len(frames) < 100:  # all but the first tick, which is held
            frames += parser.feed(raw.recv(65536))
        codes = {unpack_error(frame[4])[0] for frame in frames if frame[0] == Kind.ERROR}
        assert codes == {"overloaded"}
    server.close(0)


def test_what_becomes_large_is_decoded_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What comes behind it on its connection keeps its place, others are answered meanwhile."""
    decode, may_go_on = DeltaDecoder.decode, threading.Event()

    def gated(self: DeltaDecoder, data: bytes) -> bytes:
        body = decode(self, data)
        assert len(body) < 1_000_000 or may_go_on.wait(10)
        return body

    monkeypatch.setattr(DeltaDecoder, "decode", gated)
    server = ServerThread(Counter)
    address = server.addresses[0]
    encoder, broken = DeltaEncoder(1 << 24), DeltaEncoder(1 << 24)
    bodies = [bytes(8_000_000), b"x" * 100, bytes(8_000_000)]
    ticks = [encoder.encode(body) for body in bodies]
    ticks.append(broken.encode(bytes(8_000_000))[:-1])
    with connect(address) as raw, Client(address) as other:
        raw.sendall(pack(Kind.START, 1, "s", b"", DELTA))
        raw.sendall(b"".join(pack(Kind.TICK, 2 + n, "s", t, DELTA) for n, t in enumerate(ticks)))
        raw.sendall(pack(Kind.TICK, 9, "s", b"") + pack(Kind.END, 10, "s", b"") + bytes(99))
        other.start("other")
        assert other.tick("other", b"") == b"1"
        may_go_on.set()
        frames = FrameParser(1 << 20, 99).feed(read_all(raw))
    assert [(frame[2], frame[4]) for frame in frames if frame[0] == Kind.REPLY][1:] == [
        (2, b"1"), (3, b"2"), (4, b"3"), (9, b"4"), (10, b"ended")
    ]  # fmt: skip
    codes = [unpack_error(frame[4])[0] for frame in frames if frame[0] == Kind.ERROR]
    assert codes == ["bad_delta", "bad_frame"]
    server.close(0)


def test_a_fault_of_the_decoding_leaves_no_client_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(self: DeltaDecoder, data: bytes) -> bytes:
        raise MemoryError

    monkeypatch.setattr(DeltaDecoder, "decode", out_of_memory)
    server = ServerThread(Counter)
    tick = DeltaEncoder(1 << 24).encode(bytes(8_000_000))
    with connect(server.addresses[0]) as raw:
        raw.sendall(pack(Kind.START, 1, "s", b"", DELTA) + pack(Kind.TICK, 2, "s", tick, DELTA))
        with contextlib.suppress(ConnectionError):
            read_all(raw)
    server.close(0)


def test_the_body_of_a_start_claims_nothing() -> None:
    """Only a tick is encoded: a start's bytes were read as a length, and found no room."""
    server = ServerThread(Gated)
    with connect(server.addresses[0]) as raw, connect(server.addresses[0]) as other:
        held = pack(Kind.TICK, 2, "s", b"hold" + bytes(1_000_000))
        other.sendall(pack(Kind.START, 1, "s", b"") + held)
        while not server._server.budget.used_bytes:
            time.sleep(0.01)
        raw.sendall(pack(Kind.START, 3, "t", b"\xff" * 100, DELTA))
        (frame,) = FrameParser(1 << 20, 99).feed(raw.recv(65536))
        assert frame[:3] == (Kind.REPLY, DELTA, 3)
    server.close(0)


class Gated(Counter):
    async def tick(self, body: bytes) -> bytes:
        if body.startswith(b"hold"):
            await asyncio.sleep(60)
        return await super().tick(b"")
