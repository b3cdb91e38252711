"""Bodies in JSON, for clients that have no codec: arrays are lists, and nested lists.

A list of numbers, or of lists of equal lengths in the end of numbers, becomes one array: int64, or
float64 where a number has a fraction or an exponent, or is too large; a list of booleans a bool
array. Other lists stay lists, single numbers stay Python's. `bray_core.json_fit` casts to a spec.

What a text may cost is found out before anything is made of it, as in `bray_core.codec_cost`:
decoding holds up all threads, so a text and its number of values are bounded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from bray_core import nested
from bray_core.errors import CodecError
from bray_core.nested import Nested

MAX_BYTES = 4 * 1024 * 1024
"""Longest text."""
MAX_NUMBERS = 262_144
"""Most values of lists and objects in a text, counted by its commas: enough for a picture of
256 × 256 pixels and four channels. As Python objects, so many numbers take 15 MiB."""
MAX_VALUES = 65_536
"""Most lists, objects, keys and strings of a text, counted by their signs."""
MAX_ARRAYS = 16_384
"""Most arrays that are made of a text; lists within lists of equal lengths are one."""
MAX_DEPTH = 32
MAX_PATH = 1024
"""Characters of all keys on the way to a value: whoever names each leaf by its path copies them."""
_SPACE = b" \n\r\t"
_PIECE_VALUES = 4096
_LEAST_INT, _MOST_INT = -(2**63), 2**64 - 1


class JsonBody(bytes):
    """A body that is JSON text in UTF-8: a server makes one of what its client says is JSON.

    An actor that reads it by `bray_core.codec.decode`, like any other body, and answers in the
    codec, is answered for in JSON; one that does not gets the text as it came, and its answer goes
    as it is.

    Examples:
        >>> from bray_core import codec
        >>> codec.decode(JsonBody(b'{"observation": [0.5, 1], "reward": 1}'))
        {'observation': array([0.5, 1. ]), 'reward': 1}
    """

    is_read: bool = False
    """Whether somebody has asked for what it holds."""
    is_malformed: bool = False
    """Whether that failed: whoever sent it is at fault."""
    value: Nested = None
    """What it holds, once it was read."""


def has_few_values(text: bytes, few: int) -> bool:
    """Return whether a text is short and holds at most `few` values."""
    if len(text) <= few:
        return True
    return len(text) <= 32 * few and text.count(b",") + _num_values(text) <= few


def _num_values(text: bytes) -> int:
    """Return the number of lists, objects, keys and strings; signs inside of strings count too."""
    return text.count(b"[") + text.count(b"{") + text.count(b":") + text.count(b'"') // 2


def _check_cost(text: bytes) -> None:
    """Refuse a text that would cost more than its size justifies. Raises CodecError."""
    if len(text) > MAX_BYTES:
        raise _too_much(MAX_BYTES, "bytes of JSON", len(text))
    if len(text) <= MAX_VALUES:
        return
    if (numbers := text.count(b",")) > MAX_NUMBERS:
        raise _too_much(MAX_NUMBERS, "values in lists and objects of JSON", numbers)
    if (values := _num_values(text)) > MAX_VALUES:
        raise _too_much(MAX_VALUES, "lists, objects, keys and strings in JSON", values)


def _too_much(most: int, what: str, got: int) -> CodecError:
    cure = "send large arrays in bray's codec"
    return CodecError(f"expected at most {most} {what}, got {got}: {cure}")


def said_nowhere(data: bytes | memoryview) -> str:
    """Return what to tell a client whose body is JSON but was not said to be; else nothing."""
    if bytes(data[:64]).lstrip(_SPACE)[:1] not in (b"{", b"["):
        return ""
    return "; is it JSON? Then say so: Content-Type: application/json, over TCP flag 2"


def _hint(text: bytes) -> str:
    """Return what is wrong with a text that is no JSON, where that is a common mistake."""
    if text.startswith(b"\xef\xbb\xbf"):
        return " (it begins with a byte order mark: leave that out)"
    if text.startswith(b"\x1f\x8b"):
        return " (it is compressed by gzip: send it uncompressed)"
    literal = next((word for word in (b"NaN", b"Infinity") if word in text), b"").decode()
    return f" ({literal} is no number of JSON)" if literal else ""


def read(text: bytes, *, max_depth: int = MAX_DEPTH) -> Nested:
    """Return what a text holds; an empty one is an empty dict.

    Raises:
        CodecError: The text is no JSON, has a key twice in one object, or exceeds a bound.
    """
    _check_cost(text)
    if not text.strip(_SPACE):
        return {}
    try:
        tree = _DECODER.decode(text)
    except RecursionError:
        raise _too_deep(max_depth) from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise CodecError(f"expected JSON in UTF-8: {error}{_hint(text)}") from None
    reader = _Reader(max_depth)
    value = reader.read(tree, max_depth, MAX_PATH)
    if text.count(b":") != reader.num_keys:  # or a string has one
        _refuse_keys_twice(text)
    return value


class _Reader:
    """Makes arrays of lists of numbers, and counts the keys of objects."""

    def __init__(self, max_depth: int) -> None:
        self._max_depth = max_depth
        self.num_keys = 0
        self._num_arrays = 0

    def read(self, tree: Any, left: int, characters: int) -> Nested:
        kind = type(tree)
        if kind is dict:
            if not left:
                raise _too_deep(self._max_depth)
            self.num_keys += len(tree)
            for key, child in tree.items():  # in place, as a copy would take as much again
                if len(key) > characters:
                    raise too_long_keys(key)
                tree[key] = self.read(child, left - 1, characters - len(key))
            return tree
        if kind is list:
            array = self._array(tree, left)
            if array is None:
                tree[:] = [self.read(child, left - 1, characters) for child in tree]
                return tree
            self._num_arrays += 1
            if self._num_arrays > MAX_ARRAYS:
                raise _too_much(MAX_ARRAYS, "arrays in JSON", self._num_arrays)
            return array
        if kind is int and not _LEAST_INT <= tree <= _MOST_INT:
            return _float(tree)
        return tree

    def _array(self, tree: list[Any], left: int) -> npt.NDArray[Any] | None:
        """Return the array that lists of equal lengths are; None: they are something else."""
        level, shape = tree, [len(tree)]
        while (kinds := set(map(type, level))) == {list}:
            sizes = set(map(len, level))
            if len(sizes) > 1:
                break
            shape += sizes
            level = list(chain.from_iterable(level))
            if len(shape) > left:
                raise _too_deep(self._max_depth)
        if not left:
            raise _too_deep(self._max_depth)
        if kinds == {bool}:
            return np.array(level, np.bool_).reshape(shape)
        return _numbers(level).reshape(shape) if kinds <= {int, float} else None


def _numbers(values: list[Any]) -> npt.NDArray[Any]:
    if values and float not in set(map(type, values)):
        for dtype in (np.int64, np.uint64):
            try:
                return np.array(values, dtype)
            except OverflowError:
                pass
    try:
        return np.array(values, np.float64)
    except OverflowError:
        raise CodecError("expected numbers within the range of float64, got a larger one") from None


def _float(number: int) -> float:
    try:
        return float(number)
    except OverflowError:
        raise CodecError("expected numbers within the range of float64, got a larger one") from None


def _too_deep(max_depth: int) -> CodecError:
    return CodecError(f"expected JSON of at most {max_depth} levels, got more")


def too_long_keys(key: str) -> CodecError:
    """Return the refusal of a key that, with those above it, is too long."""
    most = f"expected keys of at most {MAX_PATH} characters on the way to a value"
    return CodecError(f"{most}, got {key[:40]!r}… of {len(key)}")


def _refuse_keys_twice(text: bytes) -> None:
    """Raise CodecError if an object has a key twice; the decoder would keep the last one."""
    import json  # for messages with a colon in a string, and for malformed ones

    json.loads(text, object_pairs_hook=_check_keys)


def _check_keys(pairs: list[tuple[str, Any]]) -> None:
    seen = set()
    for key, _ in pairs:
        if key in seen:
            raise CodecError(
                f"expected each key once in an object of JSON, got {key[:100]!r} again"
            )
        seen.add(key)


def write(tree: Nested) -> JsonBody:
    """Return nested arrays as JSON: arrays are lists, and nested lists.

    Raises:
        CodecError: A leaf is what JSON cannot say (NaN, an infinity, complex numbers, bytes);
            names its path.
    """
    try:
        return JsonBody(msgspec.json.encode(_written(tree, "")))
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise CodecError(f"JSON: {error}") from error


def _written(tree: Nested, path: str) -> Any:
    if isinstance(tree, dict):
        return {key: _written(child, nested.join(path, key)) for key, child in tree.items()}
    if isinstance(tree, list | tuple):
        return [_written(child, f"{path}[{index}]") for index, child in enumerate(tree)]
    if isinstance(tree, np.ndarray | np.generic):
        return _written_array(np.asarray(tree), path)
    if isinstance(tree, float) and not math.isfinite(tree):
        raise _not_in_json(path, str(tree))
    if isinstance(tree, bytes | bytearray | memoryview):
        raise _not_in_json(path, "bytes")
    return tree


def _written_array(array: npt.NDArray[Any], path: str) -> msgspec.Raw:
    if array.dtype.kind not in "biuf":
        raise _not_in_json(path, f"an array of {array.dtype}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise _not_in_json(path, "an array with NaN or infinite values")
    return msgspec.Raw(b"".join(_pieces(array)))


def _pieces(array: npt.NDArray[Any]) -> Iterator[bytes]:
    """Yield the text of an array, so many values at a time that no other thread waits long."""
    if array.size <= _PIECE_VALUES:
        yield msgspec.json.encode(array.tolist())
        return
    rows = array if array.ndim > 1 else np.array_split(array, -(-len(array) // _PIECE_VALUES))
    between = b"["
    for row in rows:
        pieces = b"".join(_pieces(row))
        yield between + (pieces if array.ndim > 1 else pieces[1:-1])
        between = b","
    yield b"]"


def _not_in_json(path: str, what: str) -> CodecError:
    return CodecError(
        f"{path or 'tree'}: expected what JSON can say, got {what}: ask in bray's codec"
    )


_DECODER: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
