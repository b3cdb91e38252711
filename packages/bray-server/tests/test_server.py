from __future__ import annotations

import asyncio
import gc
import json
import socket
import sys
import urllib.error
import urllib.request
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest

from bray_core.errors import ConfigError, DeadlineError, PortInUseError, ServiceError
from bray_server import AsyncClient, Client, Limits, Request, Server, ServerThread
from bray_server.hosting.reserved_port import reserved_port
from bray_server.wire.frames import Kind, pack


class Counter:
    """Counts its ticks; does as the body says."""

    aborted: list[str] = []  # noqa: RUF012  shared on purpose: the tests look at it

    def __init__(self, session: str) -> None:
        self.session = session
        self.ticks = 0

    async def start(self, body: bytes) -> bytes:
        if body == b"fail":
            raise ValueError("no start")
        return b"started"

    async def tick(self, body: bytes) -> bytes:
        if body == b"fail":
            raise ValueError("no tick")
        if body == b"text":
            return "text"  # type: ignore[return-value]
        if body == b"sleep":
            await asyncio.sleep(60)
        self.ticks += 1
        return str(self.ticks).encode()

    async def end(self, body: bytes) -> bytes:
        if body == b"fail":
            raise ValueError("no end")
        return b"ended"

    async def abort(self, reason: str) -> None:
        self.aborted.append(self.session)
        if self.session == "bad-abort":
            raise ValueError("no abort")


class Echo:
    async def tick(self, body: bytes) -> bytes:
        return body


LIMITS = Limits(max_body_bytes=1000, max_sessions=20, max_session_bytes=20, tick_timeout_s=0.3)


@pytest.fixture
def server() -> Iterator[ServerThread]:
    Counter.aborted.clear()
    thread = ServerThread(Counter, http_port=0, limits=LIMITS)
    yield thread
    thread.close()


@pytest.fixture(params=["tcp", "http"])
def client(server: ServerThread, request: pytest.FixtureRequest) -> Iterator[Client]:
    (address,) = [a for a in server.addresses if a.startswith(request.param)]
    with Client(address, timeout_s=10) as made:
        yield made


def code_of(call: Any, *arguments: Any) -> str:
    with pytest.raises(ServiceError) as caught:
        call(*arguments)
    return caught.value.code


def test_the_life_of_a_session(client: Client) -> None:
    assert client.start("s") == b"started"
    assert [client.tick("s", b"") for _ in range(3)] == [b"1", b"2", b"3"]
    assert client.end("s") == b"ended"
    assert client.start("s") == b"started"
    assert client.tick("s", b"") == b"1"


def test_the_order_of_requests_is_enforced(client: Client) -> None:
    assert code_of(client.tick, "s", b"") == "unknown_session"
    assert code_of(client.end, "s") == "unknown_session"
    client.start("s")
    assert code_of(client.start, "s") == "session_exists"
    client.end("s")
    assert code_of(client.end, "s") == "unknown_session"
    assert code_of(client.call, b"") == "bad_request"


def test_session_names_are_bounded(client: Client) -> None:
    assert code_of(client.start, "") == "bad_session"
    assert code_of(client.start, "x" * 21) == "bad_session"


def test_user_errors_are_answered(client: Client) -> None:
    with pytest.raises(ServiceError, match="service_error: ValueError: no start"):
        client.start("s", b"fail")
    client.start("s")
    with pytest.raises(ServiceError, match="ValueError: no tick"):
        client.tick("s", b"fail")
    with pytest.raises(ServiceError, match="answered str, expected bytes"):
        client.tick("s", b"text")
    assert client.tick("s", b"") == b"1", "a failed tick leaves the session"
    with pytest.raises(ServiceError, match="ValueError: no end"):
        client.end("s", b"fail")
    assert code_of(client.tick, "s", b"") == "unknown_session"


class Quitter:
    """Leaves the process, or so it says, in whatever it is asked with a body."""

    def __init__(self, session: str) -> None: ...

    async def start(self, body: bytes) -> bytes:
        return await self.tick(body)

    async def tick(self, body: bytes) -> bytes:
        if body == b"later":
            await asyncio.sleep(0)
        if body:
            sys.exit(3)
        return b""

    end = start


@pytest.mark.parametrize("scheme", ["tcp", "http"])
@pytest.mark.parametrize("body", [b"now", b"later"])
def test_a_service_that_exits_ends_its_request_and_no_other(scheme: str, body: bytes) -> None:
    server = ServerThread(Quitter, tcp_port=0, http_port=0)
    address = server.addresses[0 if scheme == "tcp" else 1]
    with closing(server), Client(address, timeout_s=10) as client:
        told = "service_error: SystemExit: 3"
        with pytest.raises(ServiceError, match=told):
            client.start("s", body)
        client.start("s")
        for _ in range(3):  # by the long way and by the short one
            with pytest.raises(ServiceError, match=told):
                client.tick("s", body)
            assert client.tick("s", b"") == b""
        with pytest.raises(ServiceError, match=told):
            client.end("s", body)
    one: Any = Quitter("")
    for service in (_Calls(one.tick), _CallsTogether(one.tick)):
        server = ServerThread(service, tcp_port=0, http_port=0)
        address = server.addresses[0 if scheme == "tcp" else 1]
        with closing(server), Client(address, timeout_s=10) as client:
            for _ in range(3):
                with pytest.raises(ServiceError, match=told):
                    client.call(body)
                assert client.call(b"") == b""


class _Calls:
    def __init__(self, tick: Callable[[bytes], Awaitable[bytes]]) -> None:
        self.tick = tick


class _CallsTogether(_Calls):
    async def ticks(self, bodies: Sequence[bytes]) -> list[bytes]:
        return [await self.tick(body) for body in bodies]


def test_a_tick_has_a_deadline(client: Client) -> None:
    client.start("s")
    assert code_of(client.tick, "s", b"sleep") == "deadline"
    assert client.tick("s", b"") == b"1"


def test_too_many_sessions(client: Client) -> None:
    for number in range(20):
        client.start(str(number))
    assert code_of(client.start, "more") == "too_many_sessions"
    client.end("3")
    client.start("more")


def test_replies_of_an_exchange_come_in_order(client: Client) -> None:
    replies = client.exchange([Request("start", str(i), b"") for i in range(5)])
    assert replies == [b"started"] * 5
    mixed = client.exchange([Request("tick", "0", b""), Request("tick", "x", b"")])
    assert mixed[0] == b"1"
    assert isinstance(mixed[1], ServiceError)
    assert client.exchange([]) == []


def test_a_body_that_is_too_large(server: ServerThread) -> None:
    tcp, http = server.addresses
    with Client(http) as client:
        client.start("s")
        assert code_of(client.tick, "s", b"x" * 1001) == "body_too_large"
        assert client.tick("s", b"") == b"1"
    with Client(tcp) as client:
        assert code_of(client.start, "t", b"x" * 1001) == "body_too_large"
        assert code_of(client.start, "t") == "connection_lost"


def test_one_request_of_a_session_at_a_time(server: ServerThread) -> None:
    with Client(server.addresses[0]) as client:
        client.start("s")
        replies = client.exchange([Request("tick", "s", b"sleep"), Request("tick", "s", b"")])
    assert [reply.code for reply in replies if isinstance(reply, ServiceError)] == [
        "deadline",
        "busy",
    ]


def test_http_statuses(server: ServerThread) -> None:
    http = server.addresses[1]

    def post(headers: dict[str, str]) -> tuple[int, Any]:
        request = urllib.request.Request(f"{http}/step", b"", headers, method="POST")
        try:
            with urllib.request.urlopen(request) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())["error"]["code"]

    assert post({"session": "s", "step_kind": "start"}) == (200, b"started")
    assert post({"session": "s", "step_kind": "start"}) == (409, "session_exists")
    assert post({"session": "s", "step_kind": "jump"}) == (400, "bad_request")
    assert post({"step_kind": "tick"}) == (400, "bad_session")
    assert post({"session": "x", "step_kind": "tick"}) == (404, "unknown_session")
    assert post({"session": "s", "step_kind": "stop"}) == (200, b"ended")
    with urllib.request.urlopen(f"{http}/health") as response:
        assert response.status == 200
    with urllib.request.urlopen(f"{http}/ready") as response:
        assert response.status == 200
    with urllib.request.urlopen(f"{http}/metrics") as response:
        text = response.read().decode()
    assert 'bray_requests_total{kind="start"} 2' in text
    assert "bray_request_seconds_count 4" in text
    assert 'bray_errors_total{code="session_exists"} 1' in text
    assert "bray_sessions 0" in text


def test_garbage_gets_an_error_and_nobody_else_notices(server: ServerThread) -> None:
    host, port = server.addresses[0].removeprefix("tcp://").split(":")
    with Client(server.addresses[0]) as client:
        requests = [Request("start", str(i), b"") for i in range(10)]
        assert client.exchange(requests) == [b"started"] * 10
        for garbage in (b"GET / HTTP/1.1\r\n\r\n" * 2, b"\0" * 100, pack(Kind.REPLY, 1, "", b"")):
            with socket.create_connection((host, int(port)), 5) as other:
                other.sendall(garbage)
                answer = b""
                while data := other.recv(4096):
                    answer += data
            assert b"bad_frame" in answer
        ticks = client.exchange([Request("tick", str(i), b"") for i in range(10)])
        assert ticks == [b"1"] * 10


def test_a_connection_cut_at_every_byte_of_a_frame(server: ServerThread) -> None:
    host, port = server.addresses[0].removeprefix("tcp://").split(":")
    frame = pack(Kind.START, 1, "cut", b"body")
    with Client(server.addresses[0]) as client:
        client.start("s")
        for length in range(len(frame)):
            with socket.create_connection((host, int(port)), 5) as other:
                other.sendall(frame[:length])
        assert client.tick("s", b"") == b"1"
    assert server.stats()["errors"] == 0


def test_sessions_end_with_their_connection(server: ServerThread) -> None:
    with Client(server.addresses[0]) as client:
        client.start("mine")
        client.start("bad-abort")
    with Client(server.addresses[0]) as client:
        while server.stats()["sessions"]:
            client.exchange([Request("tick", "x", b"")])
        assert client.start("mine") == b"started"
    assert Counter.aborted[:2] == ["mine", "bad-abort"]


def test_pings_are_answered(server: ServerThread) -> None:
    host, port = server.addresses[0].removeprefix("tcp://").split(":")
    with socket.create_connection((host, int(port)), 5) as raw:
        raw.sendall(pack(Kind.PING, 3, "", b"x"))
        assert raw.recv(100) == pack(Kind.PONG, 3, "", b"x")


def test_a_stateless_service() -> None:
    thread = ServerThread(Echo(), http_port=0)
    for address in thread.addresses:
        with Client(address) as client:
            assert client.call(b"hello") == b"hello"
            assert code_of(client.start, "s") == "bad_request"
    thread.close()


@pytest.mark.parametrize("scheme", ["tcp", "http"])
def test_tokens(scheme: str) -> None:
    thread = ServerThread(Echo(), http_port=0, tokens=["old", "new", "schlüssel", "令牌"])
    (address,) = [a for a in thread.addresses if a.startswith(scheme)]

    def call(token: str | None) -> bytes:
        with Client(address, token=token) as client:
            return client.call(b"x")

    assert call("old") == call("new") == call("schlüssel") == call("令牌") == b"x"
    assert code_of(call, "wrong") == "unauthorized"
    assert code_of(call, None) == "unauthorized"
    thread.close()


@pytest.mark.parametrize("token", ["secret\n", " secret", "a\nb", "a\0b"])
def test_a_token_that_no_header_can_have_is_refused(token: str) -> None:
    with pytest.raises(ConfigError, match="tokens: expected no spaces around a token and no line"):
        ServerThread(Echo(), http_port=0, tokens=["old", token])


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortInUseError, match=rf"port {port} on 127.0.0.1.*another tcp port"):
            ServerThread(Echo(), tcp_port=port)
        with pytest.raises(PortInUseError, match="another http port"):
            ServerThread(Echo(), http_port=port)


def test_a_port_is_reserved_where_connections_of_a_closed_server_linger() -> None:
    server = ServerThread(Echo())
    port = int(server.addresses[0].rpartition(":")[2])
    with Client(server.addresses[0]) as client:
        client.call(b"")
        server.close(drain_s=0.0)  # first, so that the kernel keeps its side of the connection
    with reserved_port("127.0.0.1", "tcp_port", port) as held:
        assert held == port
        with socket.socket() as another:
            another.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with pytest.raises(OSError, match="in use"):
                another.bind(("127.0.0.1", port))


def test_nobody_there() -> None:
    assert code_of(Client, "tcp://127.0.0.1:1") == "unreachable"
    assert code_of(Client, "http://127.0.0.1:1") == "unreachable"


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1:80",
        "ftp://x:1",
        "tcp://x",
        "tcp://x:99999",
        "tcp://x:0",
        "",
        "tcp://me:secret@x:1",
        "http://x:1?a=b",
        "tcp://x:1#f",
        "tcp://x..y:1",
        f"tcp://{'x' * 64}:1",
    ],
)
def test_addresses_of_another_form_are_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="address: expected tcp://host:port"):
        Client(address)


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid", "a..b", "x" * 300])
def test_a_host_that_is_not_this_machine_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="host: expected an address of this machine"):
        ServerThread(Counter, host=host)
    with (
        pytest.raises(ConfigError, match="host: expected an address of this machine"),
        reserved_port(host, "tcp_port", 0),
    ):
        pass


def test_nonsense_is_refused() -> None:
    class NoTick:
        pass

    class SyncTick:
        def tick(self, body: bytes) -> bytes:
            return body

    with pytest.raises(ConfigError, match="expected an async tick"):
        ServerThread(SyncTick())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="service: expected a class"):
        ServerThread(NoTick())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"session's id, got Echo\(\): too many .*: Echo\(…\)$"):
        ServerThread(Echo)
    with pytest.raises(ConfigError, match=r"got <lambda>\(\): too many positional arguments$"):
        ServerThread(lambda: Echo())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="tcp_port: expected a port here or"):
        ServerThread(Echo(), tcp_port=None)
    with pytest.raises(ConfigError, match="max_sessions: expected 1 or more, got 0"):
        Limits(max_sessions=0)
    with pytest.raises(ConfigError, match="tokens"):
        ServerThread(Echo(), tokens="secret")
    with pytest.raises(ConfigError, match="timeout_s"):
        Client("tcp://127.0.0.1:1", timeout_s=0)


@pytest.fixture
async def running(request: pytest.FixtureRequest) -> AsyncIterator[Server]:
    """A server; its parameter is how long a session may be idle."""
    Counter.aborted.clear()
    limits = Limits(idle_timeout_s=getattr(request, "param", 60), tick_timeout_s=5)
    server = Server(Counter, http_port=0, limits=limits)
    await server.start()
    yield server
    await server.stop(0)


async def test_the_async_client(running: Server) -> None:
    for address in (f"tcp://127.0.0.1:{running.tcp_port}", f"http://127.0.0.1:{running.http_port}"):
        async with await AsyncClient.connect(address, timeout_s=10) as client:
            assert await client.start("s") == b"started"
            assert await client.tick("s", b"") == b"1"
            with pytest.raises(ServiceError, match="session_exists"):
                await client.start("s")
            assert await client.end("s") == b"ended"
            names = [str(i) for i in range(50)]
            await client.exchange([Request("start", name, b"") for name in names])
            ticks = await asyncio.gather(*(client.tick(name, b"") for name in names))
            assert ticks == [b"1"] * 50
            await client.exchange([Request("end", name, b"") for name in names])


async def test_the_async_client_has_a_deadline(running: Server) -> None:
    address = f"tcp://127.0.0.1:{running.tcp_port}"
    async with await AsyncClient.connect(address, timeout_s=0.2) as client:
        await client.start("s")
        with pytest.raises(DeadlineError, match=r"no reply within 0\.2 s"):
            await client.tick("s", b"sleep")


@pytest.mark.parametrize("running", [0.2], indirect=True)
async def test_idle_sessions_are_aborted(running: Server) -> None:
    address = f"tcp://127.0.0.1:{running.tcp_port}"
    async with await AsyncClient.connect(address) as client:
        await client.start("idle")
        async with asyncio.timeout(5):
            while running.num_sessions:  # noqa: ASYNC110  nothing tells that one is gone
                await asyncio.sleep(0.02)
        with pytest.raises(ServiceError, match="unknown_session"):
            await client.tick("idle", b"")
    assert Counter.aborted == ["idle"]


async def test_draining_lets_running_requests_finish() -> None:
    class Slow(Counter):
        async def tick(self, body: bytes) -> bytes:
            entered.set()
            await release.wait()
            return b"done"

    entered, release = asyncio.Event(), asyncio.Event()
    server = Server(Slow, http_port=0)
    await server.start()
    async with await AsyncClient.connect(f"tcp://127.0.0.1:{server.tcp_port}") as client:
        await client.start("s")
        tick = asyncio.create_task(client.tick("s", b""))
        await entered.wait()
        stop = asyncio.create_task(server.stop(5.0))
        await asyncio.sleep(0)
        with pytest.raises(ServiceError, match="draining"):
            await client.start("new")
        release.set()
        assert await tick == b"done"
        assert not stop.done(), "the session is still open"
        await client.end("s")
        await stop
    with pytest.raises(ServiceError, match="unreachable"):
        await AsyncClient.connect(f"tcp://127.0.0.1:{server.tcp_port}")


class Closing:
    async def tick(self, body: bytes) -> bytes:
        self.server.close()
        return b"closing"

    server: ServerThread


def test_a_service_may_close_its_own_server() -> None:
    service = Closing()
    server = service.server = ServerThread(service)
    with Client(server.addresses[0]) as client:
        assert client.call(b"") == b"closing"
        server.close()  # waits for that one
        with pytest.raises(ServiceError, match=r"unreachable|connection_lost|draining"):
            client.call(b"")
    server.close()


async def test_a_server_that_makes_way_for_another_asks_to_come_again() -> None:
    class Lobby(Counter):
        makes_way = True

    server = Server(Lobby, http_port=0)
    await server.start()
    async with await AsyncClient.connect(f"tcp://127.0.0.1:{server.tcp_port}") as client:
        await client.start("s")
        stop = asyncio.create_task(server.stop(5.0))
        await asyncio.sleep(0)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.tcp_port)
        writer.write(pack(Kind.START, 1, "new", b""))
        assert b"not_ready" in await reader.read(1000)
        writer.close()
        await client.end("s")
        await stop


async def test_a_client_that_does_not_read_is_not_read_either() -> None:
    server = Server(Echo())
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.tcp_port, limit=1024)
    frame = pack(Kind.CALL, 1, "", b"x" * 100_000)
    with pytest.raises(TimeoutError):  # noqa: PT012
        async with asyncio.timeout(3):
            while True:  # 1,000 frames are 100 MB: the server must stop reading long before
                writer.write(frame)
                await writer.drain()
                assert sum(server.sessions.metrics.requests.values()) < 1000
    writer.transport.abort()
    del reader
    await server.stop(0)


class _Marker:
    pass


@pytest.mark.parametrize("request_", [Request("call", "", b""), Request("tick", "a", b"")])
def test_a_failed_request_is_not_kept_by_its_error(request_: Request) -> None:
    """Without the garbage collector: a frame in a traceback would hold a body of megabytes."""
    marks: list[weakref.ref[_Marker]] = []

    def fail(marker: _Marker) -> None:
        raise ServiceError("bad_request", "no")

    class Failing:
        async def start(self, body: bytes) -> bytes:
            return b""

        async def tick(self, body: bytes) -> bytes:
            marker = _Marker()
            marks.append(weakref.ref(marker))
            await asyncio.to_thread(fail, marker)
            return b""

    gc.collect()
    gc.disable()
    server = ServerThread((lambda session: Failing()) if request_.session else Failing())
    try:
        with Client(server.addresses[0]) as client:
            if request_.session:
                client.start(request_.session)
            for _ in range(2):  # the second finds that the first is done with
                assert isinstance(client.exchange([request_])[0], ServiceError)
            assert marks[0]() is None
    finally:
        gc.enable()
        server.close()
