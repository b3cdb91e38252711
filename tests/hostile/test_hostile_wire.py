"""Hostile framing: HTTP as it comes off a socket, frames, and clients without the token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest
from hostile_harness import HostileRequest, Target, check

from bray_server.wire.frames import HEADER, MAGIC, Kind, pack

pytestmark = pytest.mark.long

MIB = 1024**2
_LARGEST = 16 * MIB
_CHUNKED = b"POST /step HTTP/1.1\r\nTransfer-Encoding: chunked\r\n"


def filled(piece: bytes, size: int = _LARGEST) -> bytes:
    """Return about `size` bytes of one piece, again and again."""
    return piece * (size // len(piece))


def http(
    name: str, data: Callable[[], bytes], answer: str, port: Literal["http", "admin"] = "http"
) -> HostileRequest:
    """Return a request whose connection the server ends after one answer."""
    return HostileRequest(name=name, port=port, data=data, answer=answer)


OPEN = [
    http(
        "trailers without end",
        lambda: _CHUNKED + b"\r\n1\r\nx\r\n0\r\n" + filled(b"a: b\r\n"),
        "431 headers_too_large",
    ),
    http(
        "one trailer without end",
        lambda: _CHUNKED + b"\r\n1\r\nx\r\n0\r\na: " + filled(b"b"),
        "431 headers_too_large",
    ),
    http(
        "trailers that look like headers",
        lambda: (
            _CHUNKED + b"Connection: close\r\n\r\n0\r\nsession: forged\r\nstep_kind: start\r\n\r\n"
        ),
        "400 bad_request",
    ),
    http(
        "chunks of one byte",
        lambda: _CHUNKED + b"\r\n" + filled(b"1\r\nx\r\n"),
        "431 headers_too_large",
    ),
    http(
        "an extension without end",
        lambda: _CHUNKED + b"\r\n1;x=" + filled(b"y"),
        "431 headers_too_large",
    ),
    http(
        "an extension of every chunk",
        lambda: _CHUNKED + b"\r\n" + filled(b"1;" + b"x" * 1000 + b"\r\nx\r\n"),
        "431 headers_too_large",
    ),
    http("headers without end", lambda: b"GET /health HTTP/1.1\r\n" + filled(b"a: b\r\n"), "431.*"),
    http("one header without end", lambda: b"GET / HTTP/1.1\r\na: " + filled(b"b"), "431.*"),
    http("a URL without end", lambda: b"GET /" + filled(b"b"), "431.*"),
    http("empty lines without end", lambda: filled(b"\r\n"), "431.*"),
    http(
        "two sessions",
        lambda: b"POST /step HTTP/1.1\r\nsession: a\r\nsession: b\r\nstep_kind: start\r\n\r\n",
        "400 bad_request",
    ),
    http(
        "two lengths",
        lambda: b"POST /step HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
        "400 bad_request",
    ),
    http(
        "a length of a thousand digits",
        lambda: b"POST /step HTTP/1.1\r\nContent-Length: " + b"9" * 1000 + b"\r\n\r\nx",
        "4(00|13) .*",
    ),
    http(
        "a body at a page that reads none",
        lambda: b"GET /health HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % _LARGEST + bytes(_LARGEST),
        "413 body_too_large",
    ),
    HostileRequest(
        name="two thousand requests in one piece",
        port="http",
        data=lambda: b"GET /health HTTP/1.1\r\n\r\n" * 2000,
        answer="200",
        num_answers=2000,
    ),
    HostileRequest(
        name="two thousand ticks in one piece",
        port="tcp",
        data=lambda: pack(Kind.TICK, 1, "nobody", b"") * 2000,
        answer="error unknown_session",
        num_answers=2000,
    ),
    HostileRequest(
        name="a ping of 16 MiB",
        port="tcp",
        data=lambda: pack(Kind.PING, 1, "", bytes(_LARGEST)),
        answer="pong",
    ),
    HostileRequest(
        name="a frame of 4 GiB",
        port="tcp",
        data=lambda: HEADER.pack(MAGIC, Kind.TICK, 0, 1, 1, 2**32 - 1) + bytes(MIB),
        answer="error body_too_large",
    ),
]

_CLAIM = b"Content-Length: %d\r\n\r\n"
_HOSTILE = "Authorization: Bearer wrong\r\n"
GUARDED = [
    *(
        HostileRequest(
            name=f"sixty bodies without the token, {path}",
            port=port,
            data=lambda path=path: (  # type: ignore[misc]
                f"PUT {path} HTTP/1.1\r\n{_HOSTILE}".encode() + _CLAIM % _LARGEST + bytes(_LARGEST)
            ),
            answer="401.*",
            connections=60 if port == "http" else 10,
        )
        for port, path in (
            ("http", "/step"),
            ("http", "/v2/models/policy/infer"),
            ("admin", "/models/policy/weights"),
        )
    ),
    HostileRequest(
        name="chunked bodies without the token",
        port="http",
        data=lambda: _CHUNKED + b"\r\n" + filled(b"10000\r\n" + bytes(0x10000) + b"\r\n"),
        answer="401 unauthorized",
        connections=10,
    ),
    HostileRequest(
        name="sixty ticks before hello",
        port="tcp",
        data=lambda: pack(Kind.TICK, 1, "s", bytes(_LARGEST)),
        answer="error unauthorized",
        connections=60,
    ),
    HostileRequest(
        name="a hello of 16 MiB",
        port="tcp",
        data=lambda: pack(Kind.HELLO, 1, "", bytes(_LARGEST)),
        answer="error unauthorized",
    ),
]
_WITH_TOKEN = b"Authorization: Bearer hostile-tests\r\nConnection: close\r\n"
BUDGET = [
    HostileRequest(
        name="thirty large bodies at once over HTTP",
        port="http",
        data=lambda: b"POST /step HTTP/1.1\r\n" + _WITH_TOKEN + _CLAIM % (8 * MIB) + bytes(8 * MIB),
        answer="400 bad_request",
        connections=30,
    ),
    HostileRequest(
        name="twelve large chunked bodies at once",
        port="http",
        data=lambda: (
            _CHUNKED
            + _WITH_TOKEN
            + b"\r\n"
            + filled(b"10000\r\n" + bytes(0x10000) + b"\r\n", 8 * MIB)
            + b"0\r\n\r\n"
        ),
        answer="400 bad_request|429 overloaded",
        connections=12,
    ),
    HostileRequest(
        name="thirty large ticks at once over TCP",
        port="tcp",
        data=lambda: (
            pack(Kind.HELLO, 0, "", b"hostile-tests")
            + pack(Kind.CALL, 1, "", bytes(8 * MIB))
            + pack(Kind.CALL, 2, "", bytes(8 * MIB))
        ),
        answer="error bad_request",
        num_answers=3,
        connections=30,
    ),
]


def by_name(request: HostileRequest) -> str:
    return request.name


@pytest.mark.parametrize("request_", OPEN, ids=by_name)
def test_no_framing_costs_more_than_its_size_justifies(
    target: Target, request_: HostileRequest
) -> None:
    check(request_, target.least_cost(request_))


@pytest.mark.parametrize("request_", GUARDED, ids=by_name)
def test_nothing_is_kept_of_who_has_no_token(guarded: Target, request_: HostileRequest) -> None:
    cost = guarded.least_cost(request_)
    check(request_, cost)
    assert cost.added_bytes < 48 * MIB, f"however many there are: {cost}"


@pytest.mark.parametrize("request_", BUDGET, ids=by_name)
def test_all_that_is_in_flight_has_one_budget(guarded: Target, request_: HostileRequest) -> None:
    """32 MiB in this server; each body is held twice while it is put together."""
    cost = guarded.least_cost(request_)
    check(request_, cost)
    assert cost.added_bytes < 110 * MIB, f"however many there are: {cost}"
