"""What goes wrong at the edges of two parts at once."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server_services import Counter

from bray_core.errors import ServiceError
from bray_server import AsyncClient, Client, Limits, Server, ServerThread
from bray_server.sessions.sessions import Sessions
from bray_server.wire.frames import DELTA, FrameParser, Kind, pack, unpack_error


def frames_of(address: str, data: bytes) -> list[Any]:
    """Send bytes at once; return all frames until the server closes."""
    host, port = address.removeprefix("tcp://").split(":")
    parser, frames = FrameParser(1 << 24, 65535), []
    with socket.create_connection((host, int(port)), timeout=10) as connected:
        connected.sendall(data)
        while received := connected.recv(65536):
            frames += parser.feed(received)
    return frames


def test_frames_before_a_bad_one_are_answered_first() -> None:
    server = ServerThread(Counter)
    good = pack(Kind.START, 1, "s", b"") + pack(Kind.TICK, 2, "s", b"sleep 0.05")
    frames = frames_of(server.addresses[0], good + b"this is no frame at all")
    server.close(0)
    assert [(frame[0], frame[2]) for frame in frames] == [
        (Kind.REPLY, 1),
        (Kind.REPLY, 2),
        (Kind.ERROR, 0),
    ]


def test_an_encoded_body_beyond_the_limit_is_called_too_large() -> None:
    server = ServerThread(Counter, limits=Limits(max_body_bytes=100))
    (frame,) = frames_of(server.addresses[0], pack(Kind.TICK, 3, "s", bytes(110), DELTA))
    assert unpack_error(frame[4])[0] == "body_too_large"
    with Client(server.addresses[0], delta=True) as client:
        client.start("s")
        for body in (bytes(range(100)), bytes(range(100, 200)), bytes(100)):
            client.tick("s", body)  # raw, it is longer by its header
    server.close(0)


class Wordless(Counter):
    starts = 0

    async def start(self, body: bytes) -> Any:
        Wordless.starts += 1
        return None if Wordless.starts == 1 else b"ready"


def test_a_start_that_answers_nonsense_leaves_no_session(tmp_path: Path) -> None:
    server = ServerThread(Wordless, group=tmp_path / "group")
    with Client(server.addresses[0]) as client:
        with pytest.raises(ServiceError, match="the service answered NoneType, expected bytes"):
            client.start("s")
        assert client.start("s") == b"ready"
    server.close(0)


class Plain(Counter):
    def tick(self, body: bytes) -> Any:
        return self._later(body) if body == b"coroutine" else b"at once"

    async def _later(self, body: bytes) -> bytes:
        return body

    def end(self, body: bytes) -> Any:
        return b"at once"


def test_a_service_whose_methods_are_not_async_is_told_so() -> None:
    server = ServerThread(Plain)
    message = "service_error: the service's method returned bytes at once, expected .* `async def`"
    with Client(server.addresses[0]) as client:
        client.start("s")
        with pytest.raises(ServiceError, match=message):
            client.tick("s", b"")
        assert client.tick("s", b"coroutine") == b"coroutine", "whoever makes it"
        with pytest.raises(ServiceError, match=message):
            client.end("s")
    server.close(0)


async def test_an_aborted_session_gives_its_share_of_delta_encoding_back() -> None:
    limits = Limits(max_delta_sessions=1, idle_timeout_s=0.2)
    server = Server(Counter, limits=limits)
    await server.start()
    client = await AsyncClient.connect(server.addresses[0], delta=True)
    await client.start("idle")
    assert server._num_delta == 1
    async with asyncio.timeout(10):
        while server.num_sessions:  # noqa: ASYNC110  the server tells nobody
            await asyncio.sleep(0.05)
    assert server._num_delta == 0
    await client.close()
    await server.stop(0)


async def test_a_worker_with_all_its_connections_taken_still_answers_the_others(
    tmp_path: Path,
) -> None:
    limits = Limits(max_connections=1)
    workers = [Server(Counter, limits=limits, group=tmp_path / "group") for _ in range(2)]
    for worker in workers:
        await worker.start()
    clients = [await AsyncClient.connect(w.worker_addresses[0]) for w in workers]
    await clients[0].start("s")
    assert await clients[1].tick("s", b"") == b"1"
    for client in clients:
        await client.close()
    for worker in workers:
        await worker.stop(0)


class Late(Counter):
    """Refuses after a while what does not say how long to sleep."""

    async def tick(self, body: bytes) -> bytes:
        if body == b"refuse":
            await asyncio.sleep(0.3)
            raise ServiceError("bad_request", "too late for anybody")
        return await super().tick(body)


async def test_an_error_that_nobody_waits_for_any_more_is_nobody_elses() -> None:
    server = Server(Late, tcp_port=0)
    await server.start()
    client = await AsyncClient.connect(server.addresses[0], timeout_s=20)
    await client.start("left")
    await client.start("other")
    left = asyncio.create_task(client.tick("left", b"refuse"))
    other = asyncio.create_task(client.tick("other", b"sleep 0.8"))
    await asyncio.sleep(0.1)
    left.cancel()
    assert await other == b"1"
    await client.close()
    await server.stop(0)


class Owner:
    is_worker, owns_sessions, client = False, True, ""

    def session_ended(self, session: bytes) -> None:
        """Nothing to forget."""


async def test_sessions_of_a_lost_connection_can_be_started_again_while_one_aborts() -> None:
    aborting, may_go_on = asyncio.Event(), asyncio.Event()
    aborted: list[str] = []

    class Slow:
        def __init__(self, session: str) -> None:
            self.session = session

        async def start(self, body: bytes) -> bytes:
            return b""

        async def tick(self, body: bytes) -> bytes:
            return body

        async def end(self, body: bytes) -> bytes:
            return b""

        async def abort(self, reason: str) -> None:
            aborting.set()
            await may_go_on.wait()
            aborted.append(self.session)

    sessions = Sessions(Slow, Limits())
    lost, back = Owner(), Owner()
    for name in (b"a", b"b"):
        assert await sessions.answer(int(Kind.START), name, b"", lost) == b""
    ending = asyncio.create_task(sessions.disconnect(lost))
    await aborting.wait()
    for name in (b"a", b"b"):
        assert await sessions.answer(int(Kind.START), name, b"", back) == b""
    may_go_on.set()
    await ending
    assert aborted == ["a", "b"]
    assert len(sessions) == 2


async def test_a_lost_connection_looks_at_no_session_but_its_own() -> None:
    class Others(dict[bytes, Any]):
        def __iter__(self) -> Iterator[bytes]:
            raise AssertionError("walked")

        items = values = keys = __iter__  # type: ignore[assignment]

    sessions = Sessions(Counter, Limits())
    table = sessions._table
    table.entries = sessions.entries = Others()
    lost, stays = Owner(), Owner()
    for name, owner in ((b"a", lost), (b"b", stays), (b"c", lost), (b"d", None)):
        await sessions.answer(int(Kind.START), name, b"", owner)
    await sessions.answer(int(Kind.END), b"c", b"", stays)  # by whom does not matter
    await sessions.disconnect(lost)
    assert len(sessions) == 2
    assert [name for name, _ in table.owned_by(stays)] == [b"b"]
    await sessions.disconnect(lost)
    await sessions.disconnect(stays)
    assert len(sessions) == 1
    assert not table._owned
