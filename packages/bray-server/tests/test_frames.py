from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bray_server.frames import (
    Frame,
    FrameError,
    FrameParser,
    Kind,
    pack,
    pack_error,
    unpack_error,
)

VECTORS = Path(__file__).parents[3] / "tests" / "vectors" / "frames.json"
FRAMES = st.builds(
    Frame,
    st.sampled_from([int(kind) for kind in Kind]),
    st.integers(0, 2**32 - 1),
    st.text(max_size=20),
    st.binary(max_size=50),
)


def parser() -> FrameParser:
    return FrameParser(1000, 100)


@given(st.lists(FRAMES, max_size=5), st.data())
def test_every_split_of_the_stream_gives_the_same_frames(
    frames: list[Frame], data: st.DataObject
) -> None:
    stream = b"".join(pack(f.kind, f.request_id, f.session, f.body) for f in frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    made, got = parser(), []
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += list(made.feed(stream[start:stop]))
    assert got == frames
    assert made.pending_bytes == 0


@settings(max_examples=1000)
@given(st.binary(max_size=100), st.booleans())
def test_random_bytes_never_do_worse_than_frame_error(data: bytes, begins_well: bool) -> None:
    try:
        for _ in parser().feed(b"BRY\x01" + data if begins_well else data):
            pass
    except FrameError as error:
        assert error.code in ("bad_frame", "bad_session", "body_too_large")


@pytest.mark.parametrize("vector", json.loads(VECTORS.read_text()), ids=lambda v: v["name"])
def test_vectors(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    if "error" in vector:
        with pytest.raises(FrameError) as caught:
            list(parser().feed(data))
        assert caught.value.code == vector["error"]
        return
    (frame,) = parser().feed(data)
    body = bytes.fromhex(vector["body_hex"])
    assert frame == (Kind[vector["kind"]], vector["request_id"], vector["session"], body)
    assert pack(frame.kind, frame.request_id, frame.session, frame.body) == data


def test_error_bodies() -> None:
    (frame,) = parser().feed(pack_error(7, "s", "busy", "wait"))
    assert unpack_error(frame.body) == ("busy", "wait")
    assert unpack_error(b"\xff")[0] == "bad_frame"
    assert unpack_error(b"[]")[0] == "bad_frame"


def test_a_large_body_is_refused_before_it_is_there() -> None:
    header = pack(Kind.TICK, 9, "", b"x" * 1001)[:16]
    with pytest.raises(FrameError, match="1001 bytes exceeds the limit of 1000") as caught:
        list(parser().feed(header))
    assert caught.value.request_id == 9
