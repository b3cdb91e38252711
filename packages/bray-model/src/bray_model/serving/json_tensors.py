"""Tensors as JSON arrays, read and written in pieces: neither costs many times the text's size.

A text of 16 MiB holds eight million numbers, which as Python objects would take 300 MB. So what is
between the numbers is compared with the one form that a shape allows, before any is read; then the
numbers are read some ten thousand at a time, into the array that they belong in.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import msgspec
import numpy as np

from bray_model.tree_spec import Leaf

_PIECE_BYTES = 1 << 14
_PIECE_VALUES = 1 << 12
_FEW = 256
"""Values that are looked at sooner in Python than by numpy."""
_SPACE = b" \n\r\t"
_BRACKETS = b"[]"
_VALUES = {"b": b"truefals", "i": b"0123456789-", "u": b"0123456789-", "f": b"0123456789+-.eE"}
"""Kind of dtype → the characters of its values."""
_DECODERS: dict[str, msgspec.json.Decoder[list[Any]]] = {
    "b": msgspec.json.Decoder(list[bool]),
    "i": msgspec.json.Decoder(list[int]),
    "u": msgspec.json.Decoder(list[int]),
    "f": msgspec.json.Decoder(list[float]),
}
_NO_JSON = "holds NaN or infinite values, which JSON cannot say"
_TEXT_BYTES = {"bool": 6, "float16": 25, "float32": 25, "float64": 25}
"""What one value takes at most, with its comma: a float is written as Python writes a double."""


def read_tensor(text: bytes, shape: Sequence[int], dtype: np.dtype[Any]) -> Leaf:
    """Read an array, flat or nested as its shape says.

    Args:
        text: JSON of the array.
        shape: Shape of the array, sizes of 0 or more.
        dtype: Bool, an integer or a float.

    Raises:
        ValueError: The text holds other values, more or fewer of them, or is nested otherwise.
    """
    count = math.prod(shape)
    kind = dtype.kind
    between = text.translate(None, _VALUES[kind] + _SPACE)
    if not count:
        if text.translate(None, _BRACKETS + b"," + _SPACE):
            raise ValueError("got some")
        return np.empty(tuple(shape), dtype)
    if not _is_flat(between, count) and not _is_nested(between, shape):
        raise ValueError(_misfit(text, between, count))
    del between
    numbers = text.translate(None, _BRACKETS)
    leaf = np.empty(count, dtype)
    start = 0
    for piece in _pieces(numbers):  # between two commas there is one value, or none can be read
        values = _values(piece, kind)
        leaf[start : start + len(values)] = _converted(values, dtype)
        start += len(values)
    if start != count:
        raise ValueError(f"got {start} values")
    return leaf.reshape(tuple(shape))


def _is_flat(between: bytes, count: int) -> bool:
    commas = max(count - 1, 0)
    return len(between) == commas + 2 and between == b"[" + b"," * commas + b"]"


def _is_nested(between: bytes, shape: Sequence[int]) -> bool:
    """Compare with the form of the shape, which is built only where it is as long."""
    sizes = list(shape)
    length = 0
    for size in reversed(sizes):
        length = 2 + size * length + max(size - 1, 0)
        if length > len(between):
            return False
    if length != len(between):
        return False
    form = b""
    for size in reversed(sizes):
        form = b"[" + (form + b",") * (size - 1) + form * (size > 0) + b"]"
    return form == between


def _misfit(text: bytes, between: bytes, count: int) -> str:
    """Say what is wrong with a text whose form is not that of the shape."""
    if not text.lstrip(_SPACE).startswith(b"["):
        return "got no array"
    if b'"' not in text and (b"N" in text or b"I" in text):
        return "got NaN or Infinity: send them with the binary tensor extension"
    for sign, what in ((b'"', "text"), (b"{", "an object"), (b"n", "null")):
        if sign in text:
            return f"got {what} among them"
    got = between.count(b",") + 1 if text.translate(None, b"[]," + _SPACE) else 0
    if strange := between.translate(None, b"[],"):
        real = any(sign in strange for sign in b".eE+")
        kind = "bool" if b"t" in strange or b"f" in strange else "float64" if real else "int64"
        return f"got {got} values of {kind}"
    if got != count:
        return f"got {got} values"
    return "got lists that are not nested as the shape says"


def _pieces(numbers: bytes) -> Iterator[bytes]:
    """Cut at commas."""
    start = 0
    while start <= len(numbers):
        stop = numbers.find(b",", start + _PIECE_BYTES)
        stop = len(numbers) if stop < 0 else stop
        yield numbers[start:stop]
        start = stop + 1


def _values(piece: bytes, kind: str) -> list[Any]:
    try:
        return _DECODERS[kind].decode(b"[" + piece + b"]")
    except msgspec.DecodeError as error:
        raise ValueError(str(error).partition(" - at ")[0].partition(" (byte ")[0]) from None


def _converted(values: list[Any], dtype: np.dtype[Any]) -> Leaf:
    try:
        if dtype.kind != "f" or not values:
            return np.array(values, dtype)
        most = _largest(dtype)
        doubles = np.array(values)
        few = len(values) <= _FEW
        low, high = (min(values), max(values)) if few else (doubles.min(), doubles.max())
        if -most <= low and high <= most:
            return doubles.astype(dtype, copy=False)
    except OverflowError:
        pass
    raise ValueError(f"got one out of the range of {dtype}")


@cache
def _largest(dtype: np.dtype[Any]) -> float:
    return float(np.finfo(dtype).max)


def text_bytes(dtype: np.dtype[Any], count: int) -> int:
    """Return how many bytes `write_tensor` makes of an array at most."""
    if dtype.kind in "iu":
        return count * (len(str(np.iinfo(dtype).max)) + 2)
    return count * _TEXT_BYTES[dtype.name]


def write_tensor(leaf: Leaf) -> msgspec.Raw | list[Any]:
    """Return an array as one flat JSON array: its text, or where it is short its values.

    Raises:
        ValueError: a value is NaN or infinite, which JSON cannot say.
    """
    flat = leaf.reshape(-1)
    if flat.size <= _FEW:
        values: list[Any] = flat.tolist()
        if flat.dtype.kind == "f" and not all(map(math.isfinite, values)):
            raise ValueError(_NO_JSON)
        return values
    if flat.dtype.kind == "f" and not np.isfinite(flat).all():
        raise ValueError(_NO_JSON)
    pieces = [
        msgspec.json.encode(flat[start : start + _PIECE_VALUES].tolist())[1:-1]
        for start in range(0, flat.size, _PIECE_VALUES)
    ]
    return msgspec.Raw(b"[" + b",".join(pieces) + b"]")
