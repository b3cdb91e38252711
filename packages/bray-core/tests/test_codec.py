from __future__ import annotations

import datetime
import json
import tracemalloc
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

VECTORS = Path(__file__).parents[3] / "tests" / "vectors"


def load(name: str) -> list[dict[str, Any]]:
    vectors: list[dict[str, Any]] = json.loads((VECTORS / name).read_text())
    return vectors


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


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_arrays_are_read_only_views(kind: Any) -> None:
    data = kind(codec.encode([np.arange(100, dtype=np.int64), np.zeros((0, 3))]))
    array, empty = codec.decode(data)
    assert not array.flags.writeable
    assert not empty.flags.writeable
    assert np.shares_memory(array, np.frombuffer(data, np.uint8))


@pytest.mark.parametrize("vector", load("codec.json"), ids=lambda v: v["name"])
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


@pytest.mark.parametrize("vector", load("codec_refused.json"), ids=lambda v: v["name"])
def test_vectors_that_are_refused(vector: dict[str, str]) -> None:
    with pytest.raises(CodecError, match=r"^decode: "):
        codec.decode(bytes.fromhex(vector["hex"]))


def plain(tree: Any) -> bool:
    """Whether a tree holds only what the codec promises."""
    if isinstance(tree, dict):
        return all(type(key) is str and plain(child) for key, child in tree.items())
    if isinstance(tree, list):
        return all(map(plain, tree))
    return tree is None or type(tree) in (bool, int, float, str, bytes, np.ndarray)


MARKS = st.sampled_from([b"\xc7", b"\xc8", b"\xd4", b"\xd6", b"\xd8", b"\xdd", b"\xdf", b"\x81"])


@settings(max_examples=1000)
@given(st.binary(max_size=200) | st.lists(MARKS | st.binary(max_size=9)).map(b"".join))
def test_random_bytes_never_do_worse_than_codec_error(data: bytes) -> None:
    try:
        assert plain(codec.decode(data))
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
        (ext(b"\x03|b1\x01\x03\0\0\0" + b"\0\7\1"), "neither 0 nor 1"),
        (
            msgspec.msgpack.encode({"x": datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)}),
            "got datetime",
        ),
        (msgspec.msgpack.encode({1: 2}), "dict keys must be str, got 1"),
        (b"\x81\x91\x01\x02", r"dict keys must be str, got \(1,\)"),
        (b"\xdd\xff\xff\xff\xff", "truncated"),
        (b"\xdf\xff\xff\xff\xff", "truncated"),
        (b"\xa1\xff", "utf-8"),
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


def test_memory_is_bounded_by_the_size_of_the_data() -> None:
    hostile = [
        b"\xdd\x00\x0f\xff\xf0" + b"\x80" * 0xFFFF0,  # a list of empty dicts: the worst there is
        b"\xdd\x00\xff\xff\xff" * 30,  # lists that claim to be long, in each other
        ext(b"\x03<f8\x02" + b"\xff" * 8),
    ]
    for data in hostile:
        tracemalloc.start()
        try:
            codec.decode(data)
        except CodecError:
            pass
        finally:
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        assert peak < 80 * len(data) + 100_000


def test_what_is_no_bytes_is_refused() -> None:
    for data in ("text", None, 3, memoryview(b"abcd")[::2]):
        with pytest.raises(CodecError, match="expected contiguous bytes, got"):
            codec.decode(data)  # type: ignore[arg-type]
    codec.decode(memoryview(np.frombuffer(codec.encode(None), np.uint8)))


@pytest.mark.parametrize(
    ("leaf", "message"),
    [
        (object(), "x/y: expected arrays, numbers, strings or bytes, got object"),
        (np.array(["a"]), "x/y: expected an array of one of bool, int8.*, got <U1"),
        (np.array([None]), "x/y: expected an array of one of .*, got object"),
        (np.zeros(2, "m8[s]"), "x/y: expected an array of one of .*, got timedelta64"),
        (np.zeros(2, np.longdouble), "x/y: expected an array of one of .*, got float128"),
        (np.zeros((1,) * 33), "x/y: expected 32 dimensions at most"),
        (np.zeros((2**32, 0)), r"x/y: expected 32 dimensions at most, each below 2\*\*32"),
        (
            datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
            "x/y: expected arrays.*, got datetime",
        ),
        ({1, 2}, "x/y: expected arrays.*, got set"),
        (2**64, "x/y: can't serialize ints"),
        ("\ud800", "x/y: .*surrogates not allowed"),
        ({1: 2}, "dict keys must be str, got 1"),
    ],
)
def test_what_has_no_encoding_is_refused_by_path(leaf: Any, message: str) -> None:
    with pytest.raises(CodecError, match=f"^encode: {message}"):
        codec.encode({"a": 1, "x": {"y": leaf}})


def test_a_tree_that_contains_itself_is_refused() -> None:
    tree: list[Any] = []
    tree.append(tree)
    with pytest.raises(CodecError, match="recursion"):
        codec.encode(tree)
