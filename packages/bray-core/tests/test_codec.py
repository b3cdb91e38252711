from __future__ import annotations

import asyncio
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


def repeated(item: bytes, size: int) -> bytes:
    """Return a list of about `size` bytes, full of one item."""
    count = (size - 5) // len(item)
    return b"\xdd" + count.to_bytes(4, "big") + item * count


HOSTILE_ITEMS = {
    "empty map": b"\x80",
    "empty list": b"\x90",
    "map of one": b"\x81\xa1a\x01",
    "list of one": b"\x91\x01",
    "map that claims to be long": b"\xdf\xff\xff\xff\xff",
    "list that claims to be long": b"\xdd\x00\xff\xff\xff",
    "small integer": b"\x01",
    "float": b"\xcb" + b"\x3f" * 8,
    "short string": b"\xa2ab",
    "binary": b"\xc4\x02ab",
    "array without dimensions": ext(b"\x03|i1\x00a"),
    "array without elements": ext(b"\x03<f8\x02" + b"\0\0\0\0\xff\xff\xff\xff"),
    "array of 32 dimensions": ext(b"\x03|i1\x20" + b"\1\0\0\0" * 32 + b"a"),
}


@pytest.mark.parametrize("item", HOSTILE_ITEMS.values(), ids=HOSTILE_ITEMS)
@pytest.mark.parametrize("size", [4_000, 30_000, 2**20, codec.MAX_BYTES])
def test_no_message_takes_much_more_memory_than_its_size(item: bytes, size: int) -> None:
    data = repeated(item, size)
    tracemalloc.start()
    try:
        codec.decode(data)
    except CodecError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 8 * len(data) + 4 * 2**20


def test_a_message_of_very_many_values_is_refused_by_the_bound() -> None:
    with pytest.raises(CodecError, match="decode: expected at most 65536 values in a message"):
        codec.decode(repeated(b"\x01", 70_000))
    with pytest.raises(CodecError, match="takes at most 4194304 bytes in memory, 8 times its"):
        codec.decode(repeated(b"\x80", 50_000))
    with pytest.raises(CodecError, match="at most 4194304 bytes of long strings"):
        codec.decode(codec.encode(["x" * 3_000_000] * 2))
    assert len(codec.decode(codec.encode("x" * 4_000_000))) == 4_000_000
    assert len(codec.decode(repeated(b"\x80", 70_000), trusted=True)) == 69_995


@given(TREES, st.sampled_from([(), b"", ""]))
def test_what_encode_makes_of_few_values_is_never_refused(tree: Any, empty: Any) -> None:
    padding = [np.zeros(5_000, np.uint8), b"\xdf" * 5_000, "\u00e4" * 2_500, empty]
    assert same([tree, padding[0]], codec.decode(codec.encode([tree, *padding]))[:2])


def test_ordinary_lists_of_numbers_are_taken() -> None:
    for numbers in ([0.5] * 60_000, list(range(-30_000, 30_000)), [[0.5] * 8] * 7_000):
        assert codec.decode(codec.encode(numbers)) == numbers


def test_a_huge_key_is_not_repeated_in_the_error() -> None:
    for key in (
        b"\xc6\x00\xa0\x00\x00" + b"\xff" * 0xA00000,
        b"\x92" + b"\x01\xd9\xc8" + b"x" * 200,
    ):
        with pytest.raises(CodecError, match="dict keys must be str, got") as caught:
            codec.decode(b"\x81" + key + b"\x01")
        assert len(str(caught.value)) < 200


def test_keys_on_the_way_to_a_value_have_a_length_together() -> None:
    """Who names leaves by their paths copies all keys above each: 1 MB became 5 GB."""
    deep: Any = {"abcd": [0] * 9}
    for _ in range(4):
        deep = {"x" * 255: deep}
    assert codec.decode(codec.encode(deep)) == deep
    for tree in ({"k" * 1025: 1}, {"d": deep}, [{"a": [{"k" * 1024: 1}]}]):
        with pytest.raises(CodecError, match="keys of at most 1024 characters on the way to a"):
            codec.decode(codec.encode(tree))


def test_large_bool_arrays_are_looked_at() -> None:
    good = np.arange(10_000) % 3 == 0
    data = codec.encode([good])
    assert codec.decode(data)[0].tolist() == good.tolist()
    with pytest.raises(CodecError, match="neither 0 nor 1"):
        codec.decode(data[:-5_000] + b"\2" + data[-4_999:])


async def test_a_message_of_many_values_is_decoded_beside_the_event_loop() -> None:
    numbers = [0.5] * 50_000
    ran = asyncio.Event()
    asyncio.get_running_loop().call_soon(ran.set)
    assert await codec.decode_async(codec.encode(numbers)) == numbers
    assert ran.is_set(), "the loop went on meanwhile"
    with pytest.raises(CodecError, match="65536 values"):
        await codec.decode_async(repeated(b"\x01", 2**20))
    with pytest.raises(CodecError, match="exceed max_bytes=10"):
        await codec.decode_async(repeated(b"\x01", 2**20), max_bytes=10)
    with pytest.raises(CodecError, match="truncated"):
        await codec.decode_async(b"")
    assert await codec.decode_async(codec.encode({"a": 1})) == {"a": 1}


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
