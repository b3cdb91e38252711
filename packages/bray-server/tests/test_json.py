"""JSON beside the codec, for any service: by content type over HTTP, by a flag over TCP."""

from __future__ import annotations

import asyncio
import json
import socket
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bray_core import codec
from bray_core.errors import CodecError, ServiceError
from bray_core.json_body import JsonBody
from bray_server import AsyncClient, Client, InProcessClient, Limits, Request, Server, ServerThread
from bray_server.wire.frames import JSON, FrameParser, Kind, pack, unpack_error

VECTORS = Path(__file__).parents[3] / "tests" / "vectors" / "json.json"
FRAMES = json.loads(VECTORS.read_text())["frames"]


class Coded:
    """Written for the codec alone: returns what it got."""

    def __init__(self, session: str) -> None:
        self.session = session

    async def start(self, body: bytes) -> bytes:
        return b""

    async def tick(self, body: bytes) -> bytes:
        return codec.encode({"got": codec.decode(body)})

    async def end(self, body: bytes) -> bytes:
        return codec.encode(await codec.decode_async(body))


class Own:
    """Reads and writes a form of its own."""

    def __init__(self, session: str) -> None:
        self.session = session

    async def start(self, body: bytes) -> bytes:
        return bytes(body)

    async def tick(self, body: bytes) -> bytes:
        return json.dumps(json.loads(body)).encode()

    async def end(self, body: bytes) -> bytes:
        return b"\x01"  # a number in the codec


@pytest.fixture(scope="module")
def coded() -> Iterator[ServerThread]:
    with closing(ServerThread(Coded, http_port=0, limits=Limits(max_body_bytes=8 << 20))) as server:
        yield server


@pytest.mark.parametrize("vector", FRAMES, ids=lambda v: v["name"])
def test_vectors(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    parser = FrameParser(1000, 100)
    kind, number, session = Kind[vector["kind"]], vector["request_id"], vector["session"]
    body = vector["json"].encode()
    assert vector["flags"] & JSON
    assert parser.feed(data) == [(kind, vector["flags"], number, session.encode(), body)]
    assert pack(kind, number, session, body, vector["flags"]) == data


@pytest.mark.parametrize("port", [0, 1], ids=["tcp", "http"])
def test_a_service_for_the_codec_is_asked_in_json(coded: ServerThread, port: int) -> None:
    with Client(coded.addresses[port]) as client:
        assert client.start("s", JsonBody(b"{}")) == b""
        reply = client.tick("s", JsonBody(b'{"x": [[1, 2], [3, 4.5]]}'))
        assert type(reply) is JsonBody
        assert reply == b'{"got":{"x":[[1.0,2.0],[3.0,4.5]]}}'
        coded_reply = client.tick("s", codec.encode({"x": 1}))
        assert type(coded_reply) is bytes
        assert codec.decode(coded_reply) == {"got": {"x": 1}}
        assert client.end("s", JsonBody(b'{"a": 1}')) == b'{"a":1}'


@pytest.mark.parametrize("port", [0, 1], ids=["tcp", "http"])
async def test_the_asynchronous_client_too(coded: ServerThread, port: int) -> None:
    async with await AsyncClient.connect(coded.addresses[port]) as client:
        await client.start("s", JsonBody(b"{}"))
        reply = await client.tick("s", JsonBody(b"[1, 2]"))
        assert (type(reply), bytes(reply)) == (JsonBody, b'{"got":[1,2]}')
        with pytest.raises(ServiceError, match="bad_request: body: decode: expected JSON"):
            await client.tick("s", JsonBody(b"[1, 2"))
        await client.end("s", JsonBody(b"{}"))


@pytest.mark.parametrize("body", [b"{", b"[NaN]", b"\xff", b'{"a": 1, "a": 2}', b"[" * 99_999])
@pytest.mark.parametrize("port", [0, 1], ids=["tcp", "http"])
def test_malformed_json_is_the_clients_error(coded: ServerThread, port: int, body: bytes) -> None:
    """Also of a service that knows nothing of it; the session and the connection go on."""
    with Client(coded.addresses[port]) as client:
        client.start("s", b"")
        with pytest.raises(ServiceError, match="bad_request: body: decode: expected"):
            client.tick("s", JsonBody(body))
        assert client.tick("s", JsonBody(b"1")) == b'{"got":1}'
        client.end("s", codec.encode({}))


def test_a_refused_body_leaves_the_tcp_connection_usable(coded: ServerThread) -> None:
    host, _, port = coded.addresses[0].removeprefix("tcp://").rpartition(":")
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.sendall(
            pack(Kind.START, 1, "s", b"")
            + pack(Kind.TICK, 2, "s", b"{", JSON)
            + pack(Kind.PING, 3, "", b"")
        )
        parser, frames = FrameParser(1000, 100), []
        while len(frames) < 3:
            frames += parser.feed(connection.recv(4096))
        by_id = {frame[2]: frame for frame in frames}
        assert (by_id[2][0], by_id[2][1]) == (Kind.ERROR, 0)
        assert unpack_error(by_id[2][4])[0] == "bad_request"
        connection.sendall(pack(Kind.TICK, 4, "s", b" 7 ", JSON))
        ((kind, flags, number, _, body),) = parser.feed(connection.recv(4096))
        assert (kind, flags, number, body) == (Kind.REPLY, JSON, 4, b'{"got":7}')


@pytest.mark.parametrize(
    ("content_type", "answered"),
    [
        ("application/json", "application/json"),
        ("Application/JSON; charset=utf-8", "application/json"),
        ("application/octet-stream", "application/octet-stream"),
        ("application/x-www-form-urlencoded", "application/octet-stream"),  # curl's own
        ("text/json", "application/octet-stream"),
    ],
)
def test_the_content_type_says_what_a_body_is(
    coded: ServerThread, content_type: str, answered: str
) -> None:
    is_json = answered == "application/json"
    body = b"[1]" if is_json else codec.encode(1)
    with Client(coded.addresses[1]) as client:
        client.start("s")
        headers = {"session": "s", "step_kind": "tick", "Content-Type": content_type}
        request = urllib.request.Request(f"{coded.addresses[1]}/step", body, headers)
        with urllib.request.urlopen(request, timeout=10) as reply:
            assert reply.headers["Content-Type"] == answered
            assert reply.read() == (b'{"got":[1]}' if is_json else codec.encode({"got": 1}))
        client.end("s", codec.encode({}))


@pytest.mark.parametrize("port", [0, 1], ids=["tcp", "http"])
def test_a_service_with_a_form_of_its_own_gets_the_text_as_it_came(port: int) -> None:
    with (
        closing(ServerThread(Own, http_port=0)) as server,
        Client(server.addresses[port]) as client,
    ):
        replies = [
            client.start("s", JsonBody(b'{"a" : 1}')),
            client.tick("s", JsonBody(b'{"a":[1]}')),
            client.end("s", JsonBody(b"{}")),
        ]
        assert replies == [b'{"a" : 1}', b'{"a": [1]}', b"\x01"]
        assert {type(reply) for reply in replies} == {bytes}


class Says:
    """Answers every call with one and the same tree."""

    def __init__(self, tree: Any, failure: Exception | None = None) -> None:
        self._reply = codec.encode(tree)
        self._failure = failure

    async def tick(self, body: bytes) -> bytes:
        codec.decode(body)
        if self._failure is not None:
            raise self._failure
        return self._reply


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"a": np.array([1, np.inf])}, "a: expected what JSON can say, got an array with NaN or"),
        ({"a": [b"x"]}, r"a\[0\]: expected what JSON can say, got bytes"),
        (np.zeros(5_000_000, np.uint8), "expected at most 4194304 bytes to send as JSON, got 5"),
    ],
)
def test_a_reply_that_json_cannot_say_is_the_services_error(tree: Any, message: str) -> None:
    with InProcessClient(Says(tree)) as client:
        with pytest.raises(ServiceError, match=f"service_error: reply: .*{message}"):
            client.call(JsonBody(b"{}"))
        assert client.call(codec.encode({})) == codec.encode(tree)


def test_a_large_reply_is_converted() -> None:
    tree = np.arange(30_000.0)
    with InProcessClient(Says(tree)) as client:
        assert json.loads(client.call(JsonBody(b"{}"))) == tree.tolist()


def test_the_services_own_codec_error_is_not_the_clients() -> None:
    failure = CodecError("decode: a file of mine")
    with (
        InProcessClient(Says(1, failure)) as client,
        pytest.raises(ServiceError, match="service_error: CodecError"),
    ):
        client.call(JsonBody(b"{}"))


class Together:
    """Answers calls together."""

    async def tick(self, body: bytes) -> bytes:
        return codec.encode(codec.decode(body))

    async def ticks(self, bodies: Sequence[bytes]) -> Sequence[bytes | ServiceError]:
        replies: list[bytes | ServiceError] = []
        for body in bodies:
            try:
                replies.append(await self.tick(body))
            except CodecError as error:
                replies.append(ServiceError("bad_request", str(error)))
        return replies


@pytest.mark.parametrize("port", [0, 1], ids=["tcp", "http"])
def test_calls_that_are_answered_together_have_each_their_form(port: int) -> None:
    bodies = [JsonBody(b"[1.5]"), codec.encode(2), JsonBody(b"["), JsonBody(b'{"a":null}')]
    with (
        closing(ServerThread(Together(), http_port=0)) as server,
        Client(server.addresses[port]) as client,
    ):
        replies = client.exchange([Request("call", "", body) for body in bodies])
    assert replies[:2] == [b"[1.5]", codec.encode(2)]
    assert isinstance(replies[2], ServiceError)
    assert replies[2].code == "bad_request"
    assert replies[3] == b'{"a":null}'


async def test_a_tick_in_json_reaches_its_session_at_another_worker(tmp_path: Path) -> None:
    servers = [Server(Coded, tcp_port=0, group=tmp_path / "group") for _ in range(2)]
    for server in servers:
        await server.start()
    try:
        async with (
            await AsyncClient.connect(servers[0].addresses[0]) as first,
            await AsyncClient.connect(servers[1].addresses[0]) as second,
        ):
            await first.start("s")
            reply = await asyncio.wait_for(second.tick("s", JsonBody(b"[1]")), 10)
            assert (type(reply), bytes(reply)) == (JsonBody, b'{"got":[1]}')
            with pytest.raises(ServiceError, match="bad_request"):
                await second.tick("s", JsonBody(b"[1"))
            await second.end("s", JsonBody(b"{}"))
    finally:
        for server in servers:
            await server.stop()
