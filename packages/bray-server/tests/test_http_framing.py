"""Where a request of HTTP ends: by lengths, codings and versions, of honest clients and others."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from server_services import Echo

from bray_server import ServerThread

CHUNKS = b"3\r\nabc\r\n0\r\n\r\n"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    server = ServerThread(Echo(), http_port=0)
    yield int(server.addresses[-1].rpartition(":")[2])
    server.close(0)


def request(*headers: str, version: str = "1.1", body: bytes = b"") -> bytes:
    return "\r\n".join([f"POST /step HTTP/{version}", *headers, "", ""]).encode() + body


def until_closed(port: int, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 5) as raw:
        raw.sendall(data)
        received = b""
        while data := raw.recv(65536):
            received += data
        return received


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        (["Transfer-Encoding: gzip, chunked"], b"Transfer-Encoding: expected chunked alone"),
        (["Transfer-Encoding: gzip", "Transfer-Encoding: chunked"], b"expected chunked alone"),
        (["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"], b"Transfer-Encoding"),
        (["Transfer-Encoding: identity"], b"expected chunked alone"),
        (["Transfer-Encoding: chunked", "Content-Length: 3"], b"Content-Length"),
        (["Content-Length: 3", "Transfer-Encoding: chunked"], b"Content-Length"),
        (["Content-Length: 3", "Content-Length: 3"], b"Content-Length"),
        (["Content-Length: 3, 3"], b"Content-Length"),
        (["Content-Length:", " 3"], b"header value"),
        (["Transfer-Encoding: chunked", "a: b", " c"], b"header value"),
    ],
)
def test_a_body_whose_end_can_be_seen_in_two_ways_is_refused(
    port: int, headers: list[str], message: bytes
) -> None:
    reply = until_closed(port, request(*headers, body=CHUNKS) + request("Content-Length: 0"))
    head, _, body = reply.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert b"Connection: close" in head
    assert message in body
    assert b"\nHTTP/1.1" not in body  # what follows is no request


@pytest.mark.parametrize("coding", ["chunked", "Chunked", "  CHUNKED  "])
def test_chunked_is_known_in_any_case(port: int, coding: str) -> None:
    reply = until_closed(
        port, request(f"Transfer-Encoding: {coding}", "Connection: close", body=CHUNKS)
    )
    assert reply.startswith(b"HTTP/1.1 200")
    assert reply.endswith(b"\r\n\r\nabc")


@pytest.mark.parametrize("version", ["2.0", "0.9"])
def test_other_versions_are_refused(port: int, version: str) -> None:
    reply = until_closed(port, request("Content-Length: 3", version=version, body=b"abc"))
    assert reply.startswith(b"HTTP/1.1 400")
    assert b"expected HTTP/1.1 or HTTP/1.0" in reply


def test_a_client_of_http_1_0_is_told_that_its_connection_stays_open(port: int) -> None:
    kept = request("Connection: keep-alive", "Content-Length: 3", version="1.0", body=b"abc")
    with socket.create_connection(("127.0.0.1", port), 5) as raw:
        for _ in range(3):  # from the second on its head is known
            raw.sendall(kept)
            head, _, body = raw.recv(65536).partition(b"\r\n\r\n")
            assert b"Connection: keep-alive" in head
            assert body == b"abc"
    last = until_closed(port, request("Content-Length: 3", version="1.0", body=b"abc"))
    assert b"Connection: close" in last


def test_http_1_1_says_nothing_of_a_connection_that_stays_open(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), 5) as raw:
        raw.sendall(request("Connection: keep-alive", "Content-Length: 3", body=b"abc"))
        assert b"Connection" not in raw.recv(65536)


def test_http_1_0_has_no_chunks_and_no_interim_replies(port: int) -> None:
    chunked = until_closed(port, request("Transfer-Encoding: chunked", version="1.0", body=CHUNKS))
    assert chunked.startswith(b"HTTP/1.1 400")
    assert b"HTTP/1.0 has none: expected Content-Length" in chunked
    expecting = request("Expect: 100-continue", "Content-Length: 3", version="1.0", body=b"abc")
    assert until_closed(port, expecting).startswith(b"HTTP/1.1 200")
