"""Tensors as JSON: what is read, what is refused, and how much it costs."""

import contextlib
import math
import tracemalloc

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bray_model.serving.json_tensors import read_tensor, text_bytes, write_tensor

DTYPES = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
DTYPES += ["bool", "float16", "float32", "float64"]


@pytest.mark.parametrize(
    ("text", "shape", "dtype", "values"),
    [
        (b"[1,2,3]", (3,), "float32", [1, 2, 3]),
        (b" [ 1 ,\n2\t] ", (2,), "uint8", [1, 2]),
        (b"[[1,2],[3,4]]", (2, 2), "int64", [[1, 2], [3, 4]]),
        (b"[1,2,3,4]", (2, 2), "int64", [[1, 2], [3, 4]]),
        (b"[[1],[2]]", (2, 1), "float64", [[1], [2]]),
        (b"[true,false]", (2,), "bool", [True, False]),
        (b"[1e2,-1.5]", (2,), "float16", [100, -1.5]),
        (b"[18446744073709551615]", (1,), "uint64", [2**64 - 1]),
        (b"[]", (2, 0), "float32", [[], []]),
        (b"[[],[]]", (2, 0), "float32", [[], []]),
    ],
)
def test_what_fits_is_read(text, shape, dtype, values):
    got = read_tensor(text, shape, np.dtype(dtype))
    assert got.dtype == dtype
    assert got.shape == shape
    assert got.tolist() == values


@pytest.mark.parametrize(
    ("text", "shape", "dtype", "words"),
    [
        (b"5", (1,), "float32", "got no array"),
        (b"null", (1,), "float32", "got no array"),
        (b"[1,2]", (1,), "float32", "got 2 values"),
        (b"[]", (1,), "float32", "got 0 values"),
        (b"[0]", (10**30,), "float32", "got 1 values"),
        (b"[1]", (2, 0), "float32", "got some"),
        (b"[[1,2],[3]]", (3,), "float32", "not nested as the shape says"),
        (b"[[1],[2]]", (2,), "float32", "not nested as the shape says"),
        (b"[[[1]]]", (1, 1), "float32", "not nested as the shape says"),
        (b"[1][2", (1,), "float32", "not nested as the shape says"),
        (b'["x"]', (1,), "float32", "got text among them"),
        (b"[null]", (1,), "float32", "got null among them"),
        (b"[{}]", (1,), "float32", "got an object among them"),
        (b"[true]", (1,), "float32", "got 1 values of bool"),
        (b"[1,0]", (2,), "bool", "got 2 values of int64"),
        (b"[1.0]", (1,), "int64", "got 1 values of float64"),
        (b"[1e2]", (1,), "uint8", "got 1 values of float64"),
        (b"[,]", (2,), "float32", "JSON is malformed"),
        (b"[1,]", (2,), "float32", "JSON is malformed"),
        (b"[1 2,3]", (2,), "float32", "JSON is malformed"),
        (b"[trufalse]", (1,), "bool", "JSON is malformed"),
        (b"[256]", (1,), "uint8", "out of the range of uint8"),
        (b"[-1]", (1,), "uint64", "out of the range of uint64"),
        (b"[%s]" % (b"9" * 400), (1,), "uint64", "out of the range of uint64"),
        (b"[%s]" % (b"9" * 5000), (1,), "int8", "out of range"),
        (b"[1e999]", (1,), "float64", "out of range"),
        (b"[1e300]", (1,), "float32", "out of the range of float32"),
        (b"[70000]", (1,), "float16", "out of the range of float16"),
    ],
)
def test_what_does_not_fit_is_refused(text, shape, dtype, words):
    with pytest.raises(ValueError, match=words):
        read_tensor(text, shape, np.dtype(dtype))


def test_many_values_are_read_in_pieces_that_join():
    values = np.arange(200_000).reshape(-1, 4)
    for text in (str(values.tolist()), str(values.ravel().tolist())):
        np.testing.assert_array_equal(
            read_tensor(text.encode(), values.shape, np.dtype("int64")), values
        )


@pytest.mark.parametrize(
    "make",
    [
        lambda count: b"[" + b"0," * (count - 1) + b"0]",
        lambda count: b"[" + b"[]," * (count - 1) + b"[]]",
        lambda count: b"[" + b'"",' * (count - 1) + b'""]',
        lambda count: b"[" + b"[0]," * (count - 1) + b"[0]]",
    ],
)
def test_reading_costs_a_few_times_the_texts_size(make):
    count = 1 << 20
    text = make(count)
    tracemalloc.start()
    with contextlib.suppress(ValueError):
        read_tensor(text, (count, 1), np.dtype("float64"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 6 * len(text)


@given(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), min_size=1, max_size=3), st.data())
def test_what_is_written_is_read_again(dtype, shape, data):
    raw = data.draw(st.binary(min_size=math.prod(shape) * 8, max_size=math.prod(shape) * 8))
    leaf = np.frombuffer(raw, np.uint8)[: math.prod(shape) * np.dtype(dtype).itemsize]
    leaf = (leaf > 99) if dtype == "bool" else leaf.view(dtype)
    leaf = np.where(np.isfinite(leaf), leaf, 0).astype(dtype).reshape(shape)
    text = msgspec.json.encode(write_tensor(leaf))
    assert len(text) <= text_bytes(leaf.dtype, leaf.size) + 2
    np.testing.assert_array_equal(read_tensor(text, shape, leaf.dtype), leaf)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_json_cannot_say_nan_or_infinity(value):
    for count in (1, 1000):
        leaf = np.array([*range(count), value], np.float32)
        with pytest.raises(ValueError, match="NaN or infinite"):
            write_tensor(leaf)
