"""Delta encoding: exact, bounded, and never silent about a loss."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bray_core.errors import CodecError, ServiceError
from bray_server import AsyncClient, Client, Limits, Request, ServerThread
from bray_server.wire.delta import AFTER, HEADER, KEY, NEXT, RAW, DeltaDecoder, DeltaEncoder
from bray_server.wire.frames import DELTA, FrameParser, Kind, pack

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LIMIT = 1_000_000


def pair() -> tuple[DeltaEncoder, DeltaDecoder]:
    return DeltaEncoder(LIMIT), DeltaDecoder(LIMIT)


def kind_of(encoded: bytes) -> int:
    return encoded[0]


@st.composite
def sessions(draw: st.DrawFn) -> list[bytes]:
    """Bodies each of which is the one before with a few changes, or something else altogether."""
    bodies = [draw(st.binary(max_size=300))]
    for _ in range(draw(st.integers(0, 12))):
        body = bytearray(bodies[-1])
        for at, value in draw(st.lists(st.tuples(st.integers(0, 299), st.integers(0, 255)))):
            if at < len(body):
                body[at] = value
        change = draw(st.sampled_from(["keep", "keep", "longer", "new"]))
        if change == "longer":
            body += draw(st.binary(max_size=2000))
        elif change == "new":
            body = bytearray(draw(st.binary(max_size=3000)))
        bodies.append(bytes(body))
    return bodies


@settings(max_examples=200, deadline=None)
@given(sessions())
def test_every_body_comes_back_and_none_is_longer_than_raw(bodies: list[bytes]) -> None:
    encoder, decoder = pair()
    for body in bodies:
        encoded = encoder.encode(body)
        assert len(encoded) <= len(body) + HEADER.size
        assert decoder.decode(encoded) == body


@settings(max_examples=200, deadline=None)
@given(sessions(), st.data())
def test_a_loss_is_noticed_and_a_reset_recovers(bodies: list[bytes], data: st.DataObject) -> None:
    """Whatever is lost: a body that builds upon it is refused, never decoded wrongly."""
    encoder, decoder = pair()
    lost = data.draw(st.sets(st.integers(0, len(bodies))))
    for index, body in enumerate(bodies):
        encoded = encoder.encode(body)
        if index in lost:
            continue
        try:
            got = decoder.decode(encoded)
        except CodecError:
            assert kind_of(encoded) in (AFTER, NEXT)
            encoder.reset()
            encoded = encoder.encode(body)
            got = decoder.decode(encoded)
            assert kind_of(encoded) in (RAW, KEY)
        assert got == body


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint8", "int16", "float16", "float32", "float64", "complex64"]
)
def test_every_dtype_is_exact(dtype: str) -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 256, 800, np.uint8)  # NaNs with payloads among them
    encoder, decoder = pair()
    for _ in range(50):
        bits[rng.integers(0, 800, 5)] = rng.integers(0, 256, 5)
        body = bits.view(dtype).tobytes() if dtype != "bool" else (bits > 99).tobytes()
        assert decoder.decode(encoder.encode(body)) == body


def test_small_changes_cost_little_from_the_second_body_on() -> None:
    rng = np.random.default_rng(0)
    encoder, decoder = pair()
    body = bytearray(rng.bytes(4000))
    sizes, kinds = [], []
    for _ in range(20):
        body[int(rng.integers(4000))] ^= 255
        encoded = encoder.encode(bytes(body))
        assert decoder.decode(encoded) == body
        sizes.append(len(encoded))
        kinds.append(kind_of(encoded))
    assert kinds == [RAW, AFTER] + [NEXT] * 18, "random bytes: the first cannot shrink"
    assert max(sizes[1:]) < 60


def test_the_data_is_a_plain_zstd_stream() -> None:
    """Parts of one stream, put together, are what any zstd library reads (RFC 8878)."""
    encoder, bodies = DeltaEncoder(LIMIT), [bytes([i]) * 500 for i in range(5)]
    stream = b"".join(encoder.encode(body)[HEADER.size :] for body in bodies)
    assert zstd.ZstdDecompressor().decompress(stream) == b"".join(bodies)


def test_an_incompressible_session_is_tried_less_and_less() -> None:
    rng = np.random.default_rng(0)
    encoder, decoder = pair()
    tried = []
    for number in range(400):
        body = rng.bytes(1000)
        before = encoder._skip
        encoded = encoder.encode(body)
        assert len(encoded) == 1000 + HEADER.size
        assert decoder.decode(encoded) == body
        if not before:
            tried.append(number)
    assert tried == [0, 1, 3, 6, 11, 20, 37, 70, 135, 200, 265, 330, 395]
    same = bytes(1000)
    sizes = [len(encoder.encode(same)) for _ in range(100)]
    assert sizes[-1] < 50, "it is noticed when that changes"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "expected 9 bytes or more, got 0"),
        (HEADER.pack(RAW, 1, 3) + b"ab", "expected 3 raw bytes, got 2"),
        (HEADER.pack(RAW, 1, 3) + b"abcd", "expected 3 raw bytes, got 4"),
        (HEADER.pack(7, 1, 3) + b"abc", "expected a kind of 0 to 3, got 7"),
        (HEADER.pack(NEXT, 1, 3) + b"abc", "what body 1 builds upon is not here"),
        (HEADER.pack(AFTER, 1, 3) + b"abc", "what body 1 builds upon is not here"),
        (HEADER.pack(KEY, 1, LIMIT + 1), "1000001 bytes exceeds the limit of 1000000"),
        (HEADER.pack(KEY, 1, 3) + b"not zstd at all", "not the next part of a zstd stream"),
        (HEADER.pack(KEY, 1, 3), "expected data of a body of 3 bytes"),
        (HEADER.pack(KEY, 1, 3) + zstd.compress(b"abc"), "expected data of a body of 3 bytes"),
    ],
)
def test_what_is_broken_is_named(data: bytes, says: str) -> None:
    decoder = DeltaDecoder(LIMIT)
    with pytest.raises(CodecError, match=f"delta: .*{says}"):
        decoder.decode(data)
    assert decoder.decode(DeltaEncoder(LIMIT).encode(b"x" * 99)) == b"x" * 99, "still usable"


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_body_cut_at_every_byte_is_refused(number: int) -> None:
    bodies = [np.random.default_rng(0).bytes(100), bytes(100), b"\1" + bytes(99)]
    for cut in range(30):
        encoder, decoder = pair()
        for body in bodies[:number]:
            decoder.decode(encoder.encode(body))
        encoded = encoder.encode(bodies[number])
        if cut < len(encoded):
            with pytest.raises(CodecError):
                decoder.decode(encoded[:cut])


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(sessions(), st.data())
def test_mutated_bodies_never_do_worse_than_an_error(
    bodies: list[bytes], data: st.DataObject
) -> None:
    encoder, decoder = pair()
    for body in bodies:
        encoded = bytearray(encoder.encode(body))
        if data.draw(st.booleans()):
            encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))
        try:
            assert len(decoder.decode(bytes(encoded))) <= LIMIT
        except CodecError:
            encoder.reset()


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_bomb_does_not_go_off() -> None:
    bomb = zstd.compress(bytes(1 << 30))  # a gigabyte in 32 KB
    decoder = DeltaDecoder(LIMIT)
    before = rss_bytes()
    for size in (3, LIMIT):
        with pytest.raises(CodecError, match="expected data of a body of"):
            decoder.decode(HEADER.pack(KEY, 1, size) + bomb)
    huge_window = zstd.compress(bytes(1 << 26), options={zstd.CompressionParameter.window_log: 26})
    with pytest.raises(CodecError, match="not the next part"):
        decoder.decode(HEADER.pack(KEY, 1, LIMIT) + huge_window)
    assert rss_bytes() - before < 20_000_000


def test_a_body_beyond_the_limit_is_refused() -> None:
    with pytest.raises(CodecError, match="a body of 11 bytes exceeds the limit of 10"):
        DeltaEncoder(10).encode(b"x" * 11)


# Over the wire.


class Mirror:
    """Answers with what it saw, so that every change on the way is noticed."""

    def __init__(self, session: str) -> None: ...

    async def start(self, body: bytes) -> bytes:
        return body

    async def tick(self, body: bytes) -> bytes:
        return body

    async def end(self, body: bytes) -> bytes:
        return body


def bodies_of(seed: int, count: int = 30) -> list[bytes]:
    rng = np.random.default_rng(seed)
    frame = rng.integers(0, 256, 2000, np.uint8)
    bodies = []
    for _ in range(count):
        frame[rng.integers(0, 2000, 10)] += 1
        bodies.append(frame.tobytes())
    return bodies


def test_sessions_of_a_client_each_have_their_own_stream() -> None:
    server = ServerThread(Mirror)
    with Client(server.addresses[0], delta=True) as client:
        names = [f"s{number}" for number in range(10)]
        client.exchange([Request("start", name, b"") for name in names])
        for bodies in zip(*map(bodies_of, range(10)), strict=True):
            requests = [Request("tick", n, body) for n, body in zip(names, bodies, strict=True)]
            assert client.exchange(requests) == list(bodies)
        for name in names:
            client.end(name)
        client.start("s0")
        assert client.tick("s0", b"x" * 100) == b"x" * 100
    server.close(0)


async def test_the_async_client_too() -> None:
    server = ServerThread(Mirror)
    async with await AsyncClient.connect(server.addresses[0], delta=True) as client:
        await client.start("s")
        for body in bodies_of(0):
            assert await client.tick("s", body) == body
        await client.end("s")
    server.close(0)


def test_what_goes_over_the_wire_is_small() -> None:
    server = ServerThread(Mirror)
    with Client(server.addresses[0], delta=True) as client:
        client.start("s")
        sent: list[int] = []
        transport: Any = client._transport
        real = transport._socket

        class Spy:
            def sendall(self, data: bytes) -> None:
                sent.append(len(data))
                real.sendall(data)

            def __getattr__(self, name: str) -> Any:
                return getattr(real, name)

        transport._socket = Spy()
        for body in bodies_of(0):
            assert client.tick("s", body) == body
        transport._socket = real
    assert max(sent[2:]) < 200, sent
    server.close(0)


def test_a_lost_thread_is_taken_up_again_unnoticed() -> None:
    """The server refuses what it cannot decode before the service sees it; the client repeats."""
    server = ServerThread(Mirror)
    with Client(server.addresses[0], delta=True) as client:
        client.start("s")
        for number, body in enumerate(bodies_of(0)):
            if number % 7 == 3:  # a body that the server never sees
                transport: Any = client._transport
                transport._delta.encode("tick", "s", body)
            assert client.tick("s", body) == body
    assert server.stats()["errors"] == 4
    server.close(0)


def test_a_new_connection_begins_anew() -> None:
    server = ServerThread(Mirror)
    with Client(server.addresses[0], delta=True) as client:
        client.start("s")
        client.tick("s", b"x" * 100)
        client.close()
        with pytest.raises(ServiceError, match="unknown_session"):
            client.tick("s", b"x" * 100)
        client.start("s")
        assert client.tick("s", b"y" * 100) == b"y" * 100
    server.close(0)


def test_sessions_beyond_the_limit_are_served_without() -> None:
    server = ServerThread(Mirror, limits=Limits(max_delta_sessions=2))
    with Client(server.addresses[0], delta=True) as client:
        for round_ in range(3):
            for name in "abcd":
                client.start(name)
            transport: Any = client._transport
            assert sorted(transport._delta._encoders) == ["a", "b"], round_
            for name in "abcd":
                assert client.tick(name, b"x" * 100) == b"x" * 100
                client.end(name)
    server.close(0)


def test_encoded_ticks_without_a_grant_are_refused() -> None:
    import socket

    server = ServerThread(Mirror)
    port = int(server.addresses[0].rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), 5) as raw:
        raw.sendall(pack(Kind.START, 1, "s", b"") + pack(Kind.TICK, 2, "s", b"?", DELTA))
        parser, frames = FrameParser(1000, 100), []
        while len(frames) < 2:
            frames += parser.feed(raw.recv(1000))
    frames.sort(key=lambda frame: frame[2])
    assert frames[0][:3] == (Kind.REPLY, 0, 1), "not asked for, not granted"
    assert frames[1][0] == Kind.ERROR
    assert b"bad_delta" in frames[1][4]
    server.close(0)


def test_delta_is_for_tcp() -> None:
    from bray_core.errors import ConfigError

    with pytest.raises(ConfigError, match="delta: offered over TCP only"):
        Client("http://127.0.0.1:1", delta=True)
