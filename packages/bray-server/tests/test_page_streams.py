"""Pages that are answered in pieces: order, back-pressure, clients that leave, limits, drain."""

import asyncio
import contextlib
import json
import logging
import socket
import ssl
from http.client import HTTPConnection, IncompleteRead
from urllib.parse import urlsplit

import pytest
import trustme
from server_services import Echo

from bray_core.errors import ServiceError
from bray_server import Limits, PageReply, PageStream, Server, ServerThread, Tls

LARGE = b"x" * 100_000


class Streams:
    """Pages whose path says what is streamed; counts the pieces made and the streams that ended."""

    def __init__(self):
        self.made = self.ended = 0
        self.gone = asyncio.Event()
        self.may_end = asyncio.Event()

    async def answer(self, request):
        if request.path == "/plain":
            return PageReply(b"plain")
        last = None if request.path.endswith("cut") else (lambda e: b"error " + e.code.encode())
        return PageStream(self.pieces(request.path), error_chunk=last, headers={b"Reply": b"yes"})

    async def pieces(self, path):
        try:
            if path.startswith("/few"):
                for piece in (b"one ", b"", b"two ", b"three"):
                    yield piece
            elif path.startswith("/endless"):
                while True:
                    self.made += 1
                    yield LARGE
            elif path.startswith("/hang"):
                yield b"first "
                await self.may_end.wait()
                yield b"last"
            elif path.startswith("/refused"):
                yield b"first "
                raise ServiceError("not_ready", "later")
            elif path.startswith("/fault"):
                yield b"first "
                raise ValueError("a fault")
        finally:
            self.ended += 1
            self.gone.set()

    def error(self, error, status):
        return PageReply(error.code.encode(), status)


@contextlib.asynccontextmanager
async def serving(**options):
    pages = Streams()
    server = Server(Echo(), tcp_port=None, http_port=0, pages=pages, **options)
    await server.start()
    try:
        yield server, pages
    finally:
        await server.stop(0)


async def raw(server, text):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.http_port, limit=2**16)
    writer.write(text)
    return reader, writer


def fetch(address, path, version=11, times=1):
    connection = HTTPConnection(urlsplit(address).netloc, timeout=20)
    connection._http_vsn = version
    connection._http_vsn_str = f"HTTP/{version / 10}"
    replies = []
    with contextlib.closing(connection):
        for _ in range(times):
            connection.request("POST", path, b"{}")
            with contextlib.closing(connection.getresponse()) as reply:
                replies.append((reply.status, dict(reply.getheaders()), reply.read()))
    return replies


async def test_pieces_arrive_in_order_and_the_connection_goes_on():
    async with serving() as (server, pages):
        replies = await asyncio.to_thread(fetch, server.addresses[0], "/few", times=3)
        assert [body for *_, body in replies] == [b"one two three"] * 3
        status, headers, _ = replies[0]
        assert (status, headers["Content-Type"]) == (200, "text/event-stream")
        assert (headers["Transfer-Encoding"], headers["Reply"]) == ("chunked", "yes")
        assert headers["X-Accel-Buffering"] == "no", "nginx passes on each piece as it comes"
        assert pages.ended == 3
        assert server.sessions.num_running == 0
        assert server.snapshot()["bytes_out"] == 3 * 13


async def test_a_client_of_http_1_0_reads_until_the_end_of_the_connection():
    async with serving() as (server, _):
        [(_, headers, body)] = await asyncio.to_thread(fetch, server.addresses[0], "/few", 10)
        assert body == b"one two three"
        assert "Transfer-Encoding" not in headers
        assert headers["Connection"] == "close"


async def test_pipelined_requests_are_answered_after_the_stream():
    async with serving() as (server, _):
        one = b"POST /few HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
        last = b"GET /plain HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        reader, writer = await raw(server, one + last)
        text = await reader.read(-1)
        writer.close()
        assert text.index(b"three") < text.index(b"0\r\n\r\n") < text.index(b"plain")
        head = await asyncio.to_thread(head_of, server)
        assert head[0] == 200
        assert head[1] == b""


def head_of(server):
    connection = HTTPConnection(urlsplit(server.addresses[0]).netloc, timeout=20)
    connection.request("HEAD", "/few")
    reply = connection.getresponse()
    body = reply.read()
    connection.close()
    return reply.status, body


async def test_a_client_that_does_not_read_stops_the_generator():
    async with serving() as (server, pages):
        reader, writer = await raw(server, b"POST /endless HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
        before = -1
        while pages.made != before or not pages.made:
            before = pages.made
            await asyncio.sleep(0.05)
        assert pages.made < 200, "what the sockets' buffers take"
        for _ in range(200):
            await reader.readexactly(100_000)
        assert pages.made > before, "it went on once the client read"
        writer.transport.abort()
        await asyncio.wait_for(pages.gone.wait(), 5)


@pytest.mark.parametrize("leave", ["close", "reset"])
async def test_a_client_that_leaves_ends_the_generator_at_once(leave):
    async with serving() as (server, pages):
        reader, writer = await raw(server, b"POST /hang HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
        await reader.readuntil(b"first ")
        assert server.snapshot()["gauges"]["streams"] == 1
        writer.close() if leave == "close" else writer.transport.abort()
        await asyncio.wait_for(pages.gone.wait(), 2)
        assert server.sessions.num_running == server.sessions.num_streams == 0


@pytest.mark.parametrize(
    ("path", "code"), [("/refused", b"not_ready"), ("/fault", b"service_error")]
)
async def test_an_error_half_way_is_said_or_cuts_the_connection(path, code):
    async with serving() as (server, pages):
        [(status, _, body)] = await asyncio.to_thread(fetch, server.addresses[0], path)
        assert (status, body) == (200, b"first error " + code)
        with pytest.raises(IncompleteRead):
            await asyncio.to_thread(fetch, server.addresses[0], path + "cut")
        assert server.sessions.metrics.errors == {code.decode(): 2}
        assert pages.ended == 2


@pytest.mark.parametrize(
    ("path", "limits", "words"),
    [
        ("/hang", Limits(tick_timeout_s=0.1), b"first error deadline"),
        ("/hang", Limits(stream_timeout_s=0.1), b"first error deadline"),
        ("/few", Limits(max_stream_bytes=8), b"one two error overloaded"),
    ],
)
async def test_streams_are_bounded_in_time_and_size(path, limits, words):
    async with serving(limits=limits) as (server, pages):
        [(_, _, body)] = await asyncio.to_thread(fetch, server.addresses[0], path)
        assert body == words
        assert pages.ended == 1


async def test_the_access_log_has_a_stream_when_it_is_over(caplog):
    caplog.set_level(logging.INFO, "bray_server.access")
    async with serving(access_log=True) as (server, _):
        await asyncio.to_thread(fetch, server.addresses[0], "/few")
        await asyncio.to_thread(fetch, server.addresses[0], "/refused")
    told = [record for record in caplog.records if record.name == "bray_server.access"]
    lines = [json.loads(record.message) for record in told]
    assert [(line["path"], line["code"], line["sent_bytes"]) for line in lines] == [
        ("/few", "ok", 13),
        ("/refused", "not_ready", 0),
    ]


async def test_a_stream_counts_as_a_request_under_way():
    async with serving(limits=Limits(max_requests=1)) as (server, pages):
        reader, writer = await raw(server, b"POST /hang HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
        await reader.readuntil(b"first ")
        [(status, _, body)] = await asyncio.to_thread(fetch, server.addresses[0], "/plain")
        assert (status, body) == (429, b"overloaded")
        pages.may_end.set()
        await reader.readuntil(b"0\r\n\r\n")
        [(status, _, body)] = await asyncio.to_thread(fetch, server.addresses[0], "/plain")
        assert (status, body) == (200, b"plain")
        writer.close()


async def test_a_drain_lets_a_stream_end():
    async with serving() as (server, pages):
        reader, writer = await raw(server, b"POST /hang HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
        await reader.readuntil(b"first ")
        stopping = asyncio.create_task(server.stop(5))
        while not server.sessions.ends_calls:  # noqa: ASYNC110  it tells nobody
            await asyncio.sleep(0)
        pages.may_end.set()
        assert (await reader.readuntil(b"0\r\n\r\n")).endswith(b"last\r\n0\r\n\r\n")
        await asyncio.wait_for(stopping, 4)
        writer.close()


async def test_a_stream_that_a_drain_does_not_outlast_says_so():
    async with serving() as (server, _):
        reader, writer = await raw(server, b"POST /hang HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
        await reader.readuntil(b"first ")
        await server.stop(0)
        rest = await reader.read()
        assert b"draining" in rest
        assert rest.endswith(b"0\r\n\r\n")
        writer.close()


def test_streams_go_over_tls(tmp_path):
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    files = tmp_path / "certificate.pem", tmp_path / "key.pem"
    certificate.cert_chain_pems[0].write_to_path(files[0])
    certificate.private_key_pem.write_to_path(files[1])
    server = ServerThread(
        Echo(),
        tcp_port=None,
        http_port=0,
        pages=Streams(),
        tls=Tls(certificate=files[0], key=files[1]),
    )
    context = ssl.create_default_context()
    authority.configure_trust(context)
    address = urlsplit(server.addresses[0])
    with (
        socket.create_connection((address.hostname, address.port), 20) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as sock,
    ):
        sock.sendall(b"POST /few HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
        text = b""
        while not text.endswith(b"0\r\n\r\n"):
            text += sock.recv(4096)
    assert b"three" in text
    server.close(0)


async def test_a_client_that_leaves_before_a_whole_answer_is_noticed_soon():
    ended = asyncio.Event()

    class Waits(Streams):
        async def answer(self, request):
            try:
                await self.may_end.wait()
            finally:
                ended.set()

    server = Server(Echo(), tcp_port=None, http_port=0, pages=Waits())
    await server.start()
    _, writer = await raw(server, b"POST /x HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
    while not server.sessions.num_running:  # noqa: ASYNC110  it tells nobody
        await asyncio.sleep(0.01)
    writer.close()
    await asyncio.wait_for(ended.wait(), 2)
    await server.stop(0)
