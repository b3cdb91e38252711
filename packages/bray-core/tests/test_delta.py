from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bray_core.delta import DeltaDecoder, DeltaEncoder
from bray_core.errors import CodecError
from bray_core.layout import Layout
from bray_core.nested import ArraySpec

LAYOUT = Layout({"x": ArraySpec(np.dtype("f4"), (50,)), "n": ArraySpec(np.dtype("i4"), ())})


@given(st.lists(st.tuples(st.integers(0, 49), st.floats(width=32)), max_size=20))
def test_exact_over_a_session(changes: list[tuple[int, float]]) -> None:
    encoder, decoder = DeltaEncoder(LAYOUT), DeltaDecoder(LAYOUT)
    x = np.zeros(50, np.float32)
    for at, value in changes:
        x[at] = value
        decoded = decoder.decode(encoder.encode({"x": x, "n": np.array(at, np.int32)}))
        assert decoded["x"].tobytes() == x.tobytes()
        assert decoded["n"] == at


def test_small_changes_make_small_frames() -> None:
    encoder = DeltaEncoder(LAYOUT)
    x = np.random.default_rng(0).normal(size=50).astype(np.float32)
    tree = {"x": x, "n": np.array(0, np.int32)}
    key = encoder.encode(tree)
    x[3] += 1
    assert len(encoder.encode(tree)) < len(key) / 5


def test_a_lost_frame_asks_for_a_key_frame_which_mends_it() -> None:
    encoder, decoder = DeltaEncoder(LAYOUT), DeltaDecoder(LAYOUT)
    tree = {"x": np.zeros(50, np.float32), "n": np.array(0, np.int32)}
    decoder.decode(encoder.encode(tree))
    encoder.encode(tree)
    with pytest.raises(CodecError, match="ask for a key frame"):
        decoder.decode(encoder.encode(tree))
    decoder.decode(encoder.encode(tree, key=True))
    decoder.decode(encoder.encode(tree))


@pytest.mark.parametrize("frame", [b"", b"\x00\x01", b"\x02" + b"\0" * 9, b"\0" * 30])
def test_broken_frames_are_refused(frame: bytes) -> None:
    with pytest.raises(CodecError, match="delta"):
        DeltaDecoder(LAYOUT).decode(frame)


def test_a_bomb_is_refused() -> None:
    import zlib

    frame = b"\x00\x01\x00\x00\x00" + zlib.compress(b"\0" * 50_000_000)
    with pytest.raises(CodecError, match="another number"):
        DeltaDecoder(LAYOUT).decode(frame)
