from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bray_core import codec, nested
from bray_core.errors import CodecError

VECTORS = Path(__file__).parents[3] / "tests" / "vectors" / "codec.json"
ARRAYS = hnp.arrays(
    st.sampled_from(["?", "u1", "i2", "u4", "i8", "f2", "f4", "f8", "c8", "c16", ">f4"]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)
TREES = st.recursive(
    ARRAYS | st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary(),
    lambda children: st.dictionaries(st.text(), children) | st.lists(children),
    max_leaves=6,
)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return one.shape == other.shape and one.tobytes() == other.astype(one.dtype).tobytes()
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@given(TREES)
def test_decode_inverts_encode(tree: Any) -> None:
    assert same(tree, codec.decode(codec.encode(tree)))


def test_tuples_become_lists_and_scalars_arrays() -> None:
    decoded = codec.decode(codec.encode((1, np.float32(2.5))))
    assert decoded[0] == 1
    assert decoded[1].shape == ()
    assert decoded[1].dtype == np.float32


def test_arrays_are_read_only_views() -> None:
    data = codec.encode(np.arange(100, dtype=np.int64))
    array = codec.decode(data)
    assert not array.flags.writeable
    assert np.shares_memory(array, np.frombuffer(data, np.uint8))


@pytest.mark.parametrize("vector", json.loads(VECTORS.read_text()), ids=lambda v: v["name"])
def test_vectors(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    tree = codec.decode(data)
    if "array" in vector:
        want = vector["array"]
        tree = nested.flatten(tree)[want["path"]]
        assert tree.dtype.str == want["dtype"]
        assert list(tree.shape) == want["shape"]
        assert tree.ravel().tolist() == want["values"]
    else:
        assert tree == vector["value"]
    assert codec.encode(codec.decode(data)) == data


@settings(max_examples=1000)
@given(st.binary(max_size=200))
def test_random_bytes_never_do_worse_than_codec_error(data: bytes) -> None:
    try:
        codec.decode(data)
    except CodecError:
        pass


@settings(max_examples=500)
@given(st.data())
def test_damaged_encodings_never_do_worse_than_codec_error(data: st.DataObject) -> None:
    good = bytearray(codec.encode({"x": np.arange(6, dtype=np.float32), "y": [1, "z"]}))
    at = data.draw(st.integers(0, len(good) - 1))
    good[at] = data.draw(st.integers(0, 255))
    try:
        codec.decode(bytes(good[: data.draw(st.integers(0, len(good)))]))
    except CodecError:
        pass


def ext(payload: bytes, code: int = 1) -> bytes:
    return msgspec.msgpack.encode(msgspec.msgpack.Ext(code, payload))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (ext(b""), "cut off"),
        (ext(b"\x03<f4\x02\x01"), "cut off"),
        (ext(b"\x03<f4\x01\xff\xff\xff\xff"), "needs 17179869180 bytes, got 0"),
        (ext(b"\x03|O8\x00" + b"\0" * 8), "unknown dtype"),
        (ext(b"\x03<f4\x40" + b"\0" * 256), "64 dimensions"),
        (ext(b"x", code=5), "unknown extension type 5"),
        (b"\xc1", "decode"),
    ],
)
def test_bad_arrays_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(CodecError, match=message):
        codec.decode(data)


def test_bounds() -> None:
    with pytest.raises(CodecError, match="exceed max_bytes=4"):
        codec.decode(b"\0" * 5, max_bytes=4)
    deep: Any = 1
    for _ in range(40):
        deep = [deep]
    with pytest.raises(CodecError, match="deeper"):
        codec.decode(codec.encode(deep))
    with pytest.raises(CodecError):
        codec.decode(b"\x91" * 100_000)


@pytest.mark.parametrize("leaf", [object(), np.array(["a"]), np.array([None]), {1, 2}.__iter__()])
def test_what_has_no_encoding_is_refused(leaf: Any) -> None:
    with pytest.raises(CodecError, match="encode"):
        codec.encode({"x": leaf})
