"""Requests whose head came before: answered without parsing, by the same bytes as with it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
from http_streams import TOKEN, Moody, MoodyCalls, Streams, answers, counts

from bray_server import Limits, Server
from bray_server.hosting import http_reader
from bray_server.hosting.http_request import HttpRequest
from bray_server.sessions.direct_ticks import DirectTicks


@pytest.fixture
def answered_at_once(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Kinds of the requests that were answered, or begun, without a task."""
    found: list[int] = []
    answer = DirectTicks.answer

    def noted(self: DirectTicks, kind: int, *others: Any) -> Any:
        reply = answer(self, kind, *others)
        if reply is not None:
            found.append(kind)
        return reply

    monkeypatch.setattr(DirectTicks, "answer", noted)
    return found


async def both(
    make: Callable[[], Any], streams: Streams, count: int, patch: pytest.MonkeyPatch, **options: Any
) -> list[dict[str, Any]]:
    """Compare the answers with those of a server that parses each head; return metrics of both."""
    made = [streams.stream() for _ in range(count)]
    found = []
    for parses_all in (False, True):
        if parses_all:
            patch.setattr(http_reader, "head_of", lambda data, request: None)
        server = Server(make(), http_port=0, **options)
        await server.start()
        found.append(([await answers(server, *stream) for stream in made], counts(server)))
        await server.stop(0)
    for stream, quick, parsed in zip(made, found[0][0], found[1][0], strict=True):
        assert quick == parsed, stream
    return [metrics for _, metrics in found]


@pytest.mark.parametrize("seed", range(3))
async def test_ticks_get_the_same_replies(
    seed: int, answered_at_once: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    quick, parsed = await both(lambda: Moody, Streams(seed), 100, monkeypatch)
    assert quick == parsed
    assert len(answered_at_once) > 300  # of about 1,900


async def test_calls_get_the_same_replies(
    answered_at_once: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = Streams(3, has_sessions=False)
    quick, parsed = await both(MoodyCalls, streams, 100, monkeypatch)
    assert quick == parsed
    assert len(answered_at_once) > 300


@pytest.mark.parametrize(
    "options",
    [
        {"access_log": True},
        {"limits": Limits(max_requests=1)},
        {"limits": Limits(max_header_bytes=100)},
        {"limits": Limits(max_body_bytes=6)},
    ],
    ids=["access log", "requests", "headers", "bodies"],
)
async def test_bounds_and_the_log_are_the_same(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    quick, parsed = await both(lambda: Moody, Streams(4), 60, monkeypatch, **options)
    assert quick == parsed


async def test_with_tokens_every_head_is_read(
    answered_at_once: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    quick, parsed = await both(lambda: Moody, Streams(5), 60, monkeypatch, tokens=[TOKEN])
    assert quick == parsed
    assert quick["requests"]["tick"] > 0
    assert quick["errors"]["unauthorized"] > 0
    assert not answered_at_once


async def test_refused_requests_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that is raised again and again would hold on to all frames that it has passed."""
    server = Server(Moody, http_port=0, tokens=[TOKEN])
    await server.start()
    stream = [b"POST /step HTTP/1.1\r\nContent-Length: 0\r\n\r\n"] * 50
    assert (await answers(server, stream, [2] * 50)).count(b" 401 ") == 50
    gc.collect()
    assert not [one for one in gc.get_objects() if type(one) is HttpRequest]
    await server.stop(0)
