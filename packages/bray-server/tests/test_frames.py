from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bray_server.wire.frames import (
    Frame,
    FrameParser,
    Kind,
    pack,
    pack_error,
    unpack_error,
)

VECTORS = Path(__file__).parents[3] / "tests" / "vectors" / "frames.json"
FRAMES = st.tuples(
    st.sampled_from([int(kind) for kind in Kind]),
    st.just(0),
    st.integers(0, 2**32 - 1),
    st.binary(max_size=20),
    st.binary(max_size=50),
)


def parser() -> FrameParser:
    return FrameParser(1000, 100)


@given(st.lists(FRAMES, max_size=5), st.data())
def test_every_split_of_the_stream_gives_the_same_frames(
    frames: list[Frame], data: st.DataObject
) -> None:
    stream = b"".join(pack(kind, i, session, body) for kind, _, i, session, body in frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    made, got = parser(), []
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += made.feed(stream[start:stop])
    assert got == frames
    assert made.pending_bytes == 0


@settings(max_examples=1000)
@given(st.binary(max_size=100), st.booleans())
def test_random_bytes_never_do_worse_than_an_error(data: bytes, begins_well: bool) -> None:
    made = parser()
    made.feed(b"BRY\x01" + data if begins_well else data)
    if made.error is not None:
        assert made.error.code in ("bad_frame", "bad_session", "body_too_large")
        assert made.feed(pack(Kind.TICK, 1, "", b"")) == [], "nothing is read after an error"


@pytest.mark.parametrize("vector", json.loads(VECTORS.read_text()), ids=lambda v: v["name"])
def test_vectors(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    made = parser()
    frames = made.feed(data)
    if "error" in vector:
        assert frames == []
        assert made.error is not None
        assert made.error.code == vector["error"]
        return
    kind, number, session = Kind[vector["kind"]], vector["request_id"], vector["session"]
    body = bytes.fromhex(vector["body_hex"])
    assert frames == [(kind, 0, number, session.encode(), body)]
    assert pack(kind, number, session, body) == data


def test_error_bodies() -> None:
    ((*_, body),) = parser().feed(pack_error(7, "s", "busy", "wait"))
    assert unpack_error(body) == ("busy", "wait")
    assert unpack_error(b"\xff")[0] == "bad_frame"
    assert unpack_error(b"[]")[0] == "bad_frame"


def test_a_large_body_is_refused_before_it_is_there() -> None:
    header = pack(Kind.TICK, 9, "", b"x" * 1001)[:16]
    made = parser()
    assert made.feed(header) == []
    assert made.error is not None
    assert "1001 bytes exceeds the limit of 1000" in str(made.error)
    assert made.error.request_id == 9


def test_frames_before_a_bad_one_are_served() -> None:
    made = parser()
    frames = made.feed(pack(Kind.TICK, 1, "s", b"x") + b"\0" * 16)
    assert [frame[2] for frame in frames] == [1]
    assert made.error is not None


@pytest.mark.parametrize(("kind", "flags", "fits"), [
    (Kind.START, 1, True), (Kind.TICK, 1, True), (Kind.REPLY, 1, True), (Kind.END, 1, False),
    (Kind.CALL, 1, False), (Kind.START, 2, True), (Kind.TICK, 2, True), (Kind.TICK, 3, True),
    (Kind.END, 2, True), (Kind.END, 3, False), (Kind.CALL, 2, True), (Kind.REPLY, 3, True),
    (Kind.ERROR, 2, False), (Kind.HELLO, 2, False), (Kind.TICK, 4, False), (Kind.TICK, 6, False),
])  # fmt: skip
def test_the_flags_of_each_kind(kind: Kind, flags: int, fits: bool) -> None:
    made = parser()
    frames = made.feed(pack(kind, 1, "s", b"x", flags))
    assert (made.error is None) == fits
    assert frames == ([(kind, flags, 1, b"s", b"x")] if fits else [])
