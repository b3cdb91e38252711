"""JSON as a body: what it reads as, what it is cast to, and what it may cost."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bray_core import codec, json_body, json_fit
from bray_core.errors import CodecError, SpecError
from bray_core.json_body import JsonBody
from bray_core.nested import ArraySpec

VECTORS = Path(__file__).parents[3] / "tests" / "vectors"
GOOD = json.loads((VECTORS / "json.json").read_text())
REFUSED = json.loads((VECTORS / "json_refused.json").read_text())
MIB = 1024**2


def by_name(vector: dict[str, Any]) -> str:
    return str(vector["name"])


def spec_of(vector: dict[str, Any]) -> ArraySpec:
    return ArraySpec(np.dtype(vector["dtype"]), tuple(vector["shape"]))


def float32(*shape: int) -> ArraySpec:
    return ArraySpec(np.dtype(np.float32), shape)


@pytest.mark.parametrize("vector", GOOD["read"], ids=by_name)
def test_a_text_reads_as_what_the_codec_says(vector: dict[str, Any]) -> None:
    body = JsonBody(vector["json"].encode())
    assert codec.encode(codec.decode(body)).hex() == vector["codec_hex"]
    assert body.is_read
    assert not body.is_malformed


@pytest.mark.parametrize("vector", GOOD["cast"], ids=by_name)
def test_numbers_are_cast_to_the_spec(vector: dict[str, Any]) -> None:
    tree = json_body.read(vector["json"].encode())
    assert codec.encode(json_fit.fit(tree, spec_of(vector))).hex() == vector["codec_hex"]


@pytest.mark.parametrize("vector", GOOD["written"], ids=by_name)
def test_an_answer_is_written(vector: dict[str, Any]) -> None:
    tree = codec.decode(bytes.fromhex(vector["codec_hex"]))
    assert json_body.write(tree).decode() == vector["json"]


@pytest.mark.parametrize(
    "text",
    [f'{{"{"k" * 1025}": 1}}', f'[{{"{"k" * 600}": [{{"{"k" * 600}": null}}]}}]'],
    ids=["one key", "two keys"],
)
def test_keys_on_the_way_to_a_value_have_a_length_together(text: str) -> None:
    with pytest.raises(CodecError, match="keys of at most 1024 characters on the way to a value"):
        json_body.read(text.encode())


@pytest.mark.parametrize("vector", REFUSED["read"], ids=by_name)
def test_a_malformed_text_is_refused(vector: dict[str, Any]) -> None:
    body = JsonBody(bytes.fromhex(vector["hex"]))
    with pytest.raises(CodecError, match="expected"):
        codec.decode(body)
    assert body.is_read
    assert body.is_malformed


@pytest.mark.parametrize("vector", REFUSED["cast"], ids=by_name)
def test_what_does_not_fit_is_refused_by_its_name(vector: dict[str, Any]) -> None:
    tree = json_body.read(vector["json"].encode())
    with pytest.raises(SpecError) as caught:
        json_fit.fit(tree, spec_of(vector), "observation")
    assert str(caught.value) == vector["why"]


@pytest.mark.parametrize(
    ("text", "spec", "message"),
    [
        ("[1]", {"x": float32(1)}, r"tree: expected an object with \['x'\], got numbers of shape"),
        ("{}", {"x": float32(1)}, r"x: missing; got the keys \[\]"),
        ('{"x": {}}', {"x": {"y": float32()}}, "x/y: missing"),
        ('{"x": [1], "z": 1}', {"x": float32(1)}, r"z: unexpected; expected the keys \['x'\]"),
        ("[1]", (float32(), float32()), "tree: expected a list of 2, got numbers of shape"),
        ("[1, [2, 3]]", (float32(), float32(1)), r"\[1\]: expected float32 \(1,\), got numbers of"),
        ('{"x": [[1], [null]]}', {"x": float32(2, 1)}, r"x: expected .*, got a list with null"),
    ],
)
def test_a_structure_that_does_not_fit(text: str, spec: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        json_fit.fit(json_body.read(text.encode()), spec)


def test_lists_are_tuples_where_the_spec_has_them() -> None:
    spec = {"parts": (float32(2), float32(2)), "kind": (ArraySpec(np.dtype(np.int64), ()),) * 2}
    got = json_fit.fit(json_body.read(b'{"parts": [[1, 2], [3, 4]], "kind": [1, 2.0]}'), spec)
    assert isinstance(got["parts"], tuple)
    assert [part.tolist() for part in got["parts"]] == [[1, 2], [3, 4]]
    assert [(kind.dtype, int(kind)) for kind in got["kind"]] == [(np.int64, 1), (np.int64, 2)]


def test_no_rows_are_any_number_of_columns() -> None:
    assert json_fit.fit(json_body.read(b"[]"), float32(0, 3)).shape == (0, 3)
    with pytest.raises(SpecError):
        json_fit.fit(json_body.read(b"[]"), float32(3, 0))


arrays = st.one_of(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=8).map(np.array),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=8).map(np.array),
    st.lists(st.booleans(), min_size=1, max_size=8).map(np.array),
    st.integers(0, 4).flatmap(lambda n: st.just(np.arange(2.0 * n).reshape(n, 2))),
)


@given(st.dictionaries(st.text(max_size=5), arrays, max_size=4))
def test_a_round_trip_keeps_every_number(tree: dict[str, np.ndarray]) -> None:
    spec = {key: ArraySpec(leaf.dtype, leaf.shape) for key, leaf in tree.items()}
    got = json_fit.fit(json_body.read(json_body.write(tree)), spec)
    for key, leaf in tree.items():
        assert got[key].dtype == leaf.dtype
        assert np.array_equal(got[key], leaf)


def test_a_float32_keeps_its_bits() -> None:
    given = np.random.default_rng(0).standard_normal((3, 50)).astype(np.float32)
    got = json_fit.fit(json_body.read(json_body.write(given)), float32(3, 50))
    assert got.tobytes() == given.tobytes()


@pytest.mark.parametrize("shape", [(9_000,), (3, 2, 2_500), (10_000, 1), (2, 9_000)])
def test_large_arrays_are_written_in_pieces(shape: tuple[int, ...]) -> None:
    given = np.arange(math.prod(shape)).reshape(shape)
    assert np.array_equal(json_body.read(json_body.write(given)), given)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"a": np.array([1, np.nan])}, "a: expected what JSON can say, got an array with NaN"),
        ({"a": {"b": math.inf}}, "a/b: expected what JSON can say, got inf"),
        ({"a": [b"x"]}, r"a\[0\]: expected what JSON can say, got bytes"),
        (np.complex64(1), "tree: expected what JSON can say, got an array of complex64"),
    ],
)
def test_what_json_cannot_say_is_refused(tree: Any, message: str) -> None:
    with pytest.raises(CodecError, match=message):
        json_body.write(tree)


HOSTILE = {
    "numbers": b"[" + b"1," * 2_000_000 + b"1]",
    "brackets": b"[" * 4_000_000,
    "braces": b'{"":' * 1_000_000,
    "empty objects": b"[" + b"{}," * 1_000_000 + b"{}]",
    "texts": b"[" + b'"",' * 1_000_000 + b'""]',
    "a wide text": ('"' + "x" * 4 * MIB + '\N{PILE OF POO}"').encode(),
    "one key again and again": b"{" + b'"a":1,' * 700_000 + b'"a":1}',
    "blanks": b" " * 5 * MIB,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_text_is_refused_before_anything_is_made_of_it(name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(CodecError, match="expected at most"):
            json_body.read(HOSTILE[name])
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


WORST = {
    "numbers": b"[" + b"257," * 262_000 + b"1]",
    "digits": b"[" + b"1," * 262_000 + b"1]",
    "floats": b"[" + b"1e9," * 262_000 + b"1]",
    "numbers and a text": b"[" + b"257," * 262_000 + b'""]',
    "rows": b"[" + b"[257,257,1e9]," * 65_000 + b"[1,2,3]]",
    "a long text and short ones": b'["' + b"x" * 200_000 + b'"' + b',"ab"' * 5_000 + b"]",
    "a wide text": ('"' + "x" * 4_000_000 + '\N{PILE OF POO}"').encode(),
    "objects of one": b"[" + b'{"a":1},' * 21_000 + b"{}]",
    "lists of one and two": b"[" + b"[1],[1,2]," * 32_000 + b"[1]]",
    "ragged lists in lists": b"[" + b"[[1],[]]," * 21_000 + b"[]]",
    "lists of no numbers": b"[" + b"[null]," * 65_000 + b"[]]",
    "one key again and again": b"{" + b'"a":1,' * 32_000 + b'"a":1}',
}


@pytest.mark.parametrize("name", WORST)
def test_what_is_read_costs_no_more_than_its_size_justifies(name: str) -> None:
    text = WORST[name]
    tracemalloc.start()
    try:
        try:
            json_body.read(text)
        except CodecError:
            pass
        assert tracemalloc.get_traced_memory()[1] < 8 * len(text) + 8 * MIB
    finally:
        tracemalloc.stop()


def test_a_frame_of_a_game_passes() -> None:
    frame = np.arange(210 * 160 * 3).reshape(210, 160, 3) % 256
    spec = ArraySpec(np.dtype(np.uint8), frame.shape)
    assert np.array_equal(json_fit.fit(json_body.read(json_body.write(frame)), spec), frame)


def test_many_values_are_decoded_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    async def to_thread(work: Any, *args: Any, **options: Any) -> Any:
        threads.append(work)
        return work(*args, **options)

    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    few, many = JsonBody(b"[1, 2]"), JsonBody(b"[" + b"1," * 5_000 + b"1]")
    assert asyncio.run(codec.decode_async(few)).tolist() == [1, 2]
    assert not threads
    assert asyncio.run(codec.decode_async(many)).shape == (5_001,)
    assert len(threads) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"\xef\xbb\xbf{}", "byte order mark: leave that out"),
        (gzip.compress(b"{}", mtime=0), "compressed by gzip: send it uncompressed"),
    ],
)
def test_what_other_languages_put_around_json_is_named(text: bytes, message: str) -> None:
    with pytest.raises(CodecError, match=message):
        codec.decode(JsonBody(text))


def test_bytes_are_the_codec_whatever_they_look_like() -> None:
    with pytest.raises(CodecError, match="Then say so: Content-Type: application/json"):
        codec.decode(b'{"a": 1}')
    with pytest.raises(CodecError, match="Then say so"):
        codec.decode(memoryview(b" \n[0.5, 1]"))
    with pytest.raises(CodecError) as caught:
        codec.decode(b"\xc1")
    assert "JSON" not in str(caught.value)
    with pytest.raises(CodecError, match="exceed max_bytes=3"):
        codec.decode(JsonBody(b"1234"), max_bytes=3)
