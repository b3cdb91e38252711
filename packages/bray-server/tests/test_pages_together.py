"""Pages of a service that answers some requests together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable, Sequence

import pytest
from http_streams import answers, counts
from server_services import Echo

from bray_core.errors import ServiceError
from bray_server import Limits, Server
from bray_server.hosting import http_reader
from bray_server.sessions.pages import PageReply, PageRequest


class Grouped:
    """Answers `/a` and `/b` together with others of the same path; does as a body says."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def group(self, request: PageRequest) -> Hashable | None:
        return request.path if request.path in ("/a", "/b") else None

    async def answer(self, request: PageRequest) -> PageReply:
        return PageReply(b"alone " + request.body)

    async def answer_together(
        self, requests: Sequence[PageRequest]
    ) -> Sequence[PageReply | ServiceError]:
        self.sizes.append(len(requests))
        await asyncio.sleep(0)
        if any(request.body == b"fault" for request in requests):
            raise ValueError("a fault")
        if any(request.body == b"fewer" for request in requests):
            return []
        bad = ServiceError("bad_request", "a bad one")
        return [
            bad if request.body == b"bad" else PageReply(request.path.encode() + request.body)
            for request in requests
        ]

    def error(self, error: ServiceError, status: int) -> PageReply:
        return PageReply(error.code.encode(), status)


@pytest.fixture
def pages() -> Grouped:
    return Grouped()


@pytest.fixture
async def server(pages: Grouped) -> AsyncIterator[Server]:
    hosting = Server(Echo(), http_port=0, pages=pages, limits=Limits(max_requests=8))
    await hosting.start()
    yield hosting
    await hosting.stop(0)


def post(path: str, body: bytes) -> bytes:
    return f"POST {path} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def told(server: Server, *requests: tuple[str, bytes]) -> list[tuple[int, bytes]]:
    """Return status and body of requests that come in one turn, each on its own connection."""
    asked = [answers(server, [post(*request)], [1]) for request in requests]
    found = []
    for reply in await asyncio.gather(*asked):
        head, _, body = reply.partition(b"\r\n\r\n")
        found.append((int(head.split()[1]), body))
    return found


async def test_each_gets_its_own_reply(server: Server, pages: Grouped) -> None:
    asked = [("/a", b"1"), ("/b", b"2"), ("/c", b"3"), ("/a", b"bad"), ("/a", b"4"), ("/b", b"5")]
    found = await told(server, *asked)
    assert found == [
        (200, b"/a1"),
        (200, b"/b2"),
        (200, b"alone 3"),
        (400, b"bad_request"),
        (200, b"/a4"),
        (200, b"/b5"),
    ]
    assert sorted(pages.sizes) == [2, 3]
    metrics = counts(server)
    assert (metrics["requests"]["page"], metrics["answers"]) == (6, 6)
    assert metrics["errors"] == {"bad_request": 1}
    assert metrics["bytes_in"] == sum(len(body) for _, body in asked)
    assert metrics["bytes_out"] == sum(len(body) for status, body in found if status == 200)


@pytest.mark.parametrize("body", [b"fault", b"fewer"])
async def test_a_fault_fails_those_who_asked_together(server: Server, body: bytes) -> None:
    found = await told(server, ("/a", b"1"), ("/a", body), ("/b", b"2"))
    assert found == [(500, b"service_error"), (500, b"service_error"), (200, b"/b2")]
    assert server.sessions.num_running == 0


async def test_those_beyond_the_limit_are_refused(server: Server) -> None:
    found = await told(server, *[("/a", b"%d" % number) for number in range(12)])
    assert found == [(200, b"/a%d" % i) for i in range(8)] + [(429, b"overloaded")] * 4


async def test_pages_are_refused_while_the_server_shuts_down(server: Server) -> None:
    await server.sessions.drain(0)
    assert await told(server, ("/a", b"1"), ("/a", b"2")) == [(503, b"draining")] * 2


async def test_repeated_heads_of_pages_get_the_same_replies(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = [b"1", b"2", b"bad", b"BAD", b"bad", b"3", b"", b""]
    pieces = [post(path, body) for path in ("/a", "/c", "/health") for body in bodies]
    quick = await answers(server, pieces, [9] * len(pieces))
    monkeypatch.setattr(http_reader, "head_of", lambda data, request: None)
    assert quick == await answers(server, pieces, [9] * len(pieces))
    assert quick.count(b"HTTP/1.1") == len(pieces)
