"""The wire codec: nested arrays as msgpack, arrays as extension type 1.

An array's payload is: length of the dtype string (u8), the dtype string (`<f4`), number of
dimensions (u8), each dimension (u32, little-endian), then the raw little-endian bytes in C order.
`docs/codec.md` describes it for other languages.
"""

from __future__ import annotations

import functools
import reprlib
import struct
from typing import Any

import msgspec
import numpy as np

from bray_core import codec_cost, json_body, nested
from bray_core.errors import CodecError, SpecError
from bray_core.json_body import JsonBody
from bray_core.nested import Nested

ARRAY_EXTENSION = 1
MAX_BYTES = 16 * 1024 * 1024
MAX_DEPTH = 32
_SMALL_BYTES = codec_cost.SMALL_BYTES
_MAX_NDIM = 32
_MAX_SIZE = 0xFFFFFFFF
_FEW_VALUES = 2_000
"""Number of values up to which a message is decoded on the event loop, in a few milliseconds."""
_UNBOUNDED = 1 << 30  # Python's own limit on recursion is reached long before
_LEAVES = frozenset({type(None), bool, int, float, str, bytes, np.ndarray})
_ENCODABLE = (np.ndarray, np.generic, float, int, str, bytes, bytearray, memoryview)


def encode(tree: Nested) -> bytes:
    """Encode nested arrays; None, bool, int, float, str and bytes may be leaves too.

    Tuples become lists on the other side, numpy scalars arrays without dimensions.

    Raises:
        CodecError: A leaf has no encoding; names its path.
    """
    try:
        _check(tree, _UNBOUNDED, _UNBOUNDED)
        return _ENCODER.encode(tree)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise CodecError(f"encode: {_where(tree)}{error}") from error


def decode(
    data: bytes | bytearray | memoryview,
    *,
    max_bytes: int = MAX_BYTES,
    max_depth: int = MAX_DEPTH,
    trusted: bool = False,
) -> Nested:
    """Decode what `encode` made. Arrays are read-only views into `data`, not always aligned.

    Time and memory are bounded by the size of the data: more than 65,536 values in a message are
    refused, as are messages that would take more than 8 times their size in memory (or 4 MiB, if
    that is more).

    A `JsonBody`, which a server hands over where its client sent JSON, is read as JSON.

    Args:
        data: The encoded bytes; nothing in them is trusted.
        max_bytes: Longer data is refused before it is looked at.
        max_depth: Deeper nesting of lists and dicts is refused.
        trusted: Whether this program wrote the data: then it may have any number of values.

    Raises:
        CodecError: The data is malformed or exceeds a bound.
    """
    if type(data) is not bytes:
        if type(data) is JsonBody:
            return _decode_json(data, max_bytes, max_depth)
        data = _as_bytes(data)
    if len(data) > max_bytes:
        raise CodecError(f"decode: {len(data)} bytes exceed max_bytes={max_bytes}")
    try:
        if len(data) > _SMALL_BYTES and not trusted:
            codec_cost.check(data)
        tree = _DECODER.decode(data)
        _check(tree, max_depth, json_body.MAX_PATH)
    except (CodecError, msgspec.MsgspecError, RecursionError, ValueError, TypeError) as error:
        raise CodecError(f"decode: {error}{json_body.said_nowhere(data)}") from error
    return tree


async def decode_async(data: bytes, *, max_bytes: int = MAX_BYTES) -> Nested:
    """Decode like `decode`, without holding up the event loop: many values are left to a thread.

    Args:
        data: The encoded bytes; nothing in them is trusted.
        max_bytes: Longer data is refused before it is looked at. Pass `len(data)` where a server
            has bounded the body already.

    Raises:
        CodecError: The data is malformed or exceeds a bound.
    """
    cost = json_body if type(data) is JsonBody else codec_cost
    if len(data) > max_bytes or cost.has_few_values(data, _FEW_VALUES):
        return decode(data, max_bytes=max_bytes)
    import asyncio  # takes 30 ms to load, and most programs that decode have no event loop

    return await asyncio.to_thread(decode, data, max_bytes=max_bytes)


def _decode_json(body: JsonBody, max_bytes: int, max_depth: int) -> Nested:
    body.is_read = body.is_malformed = True
    if len(body) > max_bytes:
        raise CodecError(f"decode: {len(body)} bytes exceed max_bytes={max_bytes}")
    try:
        body.value = json_body.read(body, max_depth=max_depth)
    except CodecError as error:
        raise CodecError(f"decode: {error}") from None
    body.is_malformed = False
    return body.value


def _as_bytes(data: Any) -> memoryview:
    try:
        return memoryview(data).cast("B").toreadonly()
    except TypeError as error:
        raise CodecError(f"decode: expected contiguous bytes, got {type(data).__name__}") from error


def _check(tree: Nested, left: int, characters: int) -> None:
    """Refuse values that only some languages have (dates, keys that are no strings), and depth.

    Args:
        tree: What is looked at.
        left: Levels that it may have.
        characters: Length that its keys may have on the way to one leaf.
    """
    if isinstance(tree, dict):
        if left == 0:
            raise CodecError("nested deeper than max_depth")
        for key, child in tree.items():
            if type(key) is not str:
                raise CodecError(f"dict keys must be str, got {_BRIEF.repr(key)}")
            if len(key) > characters:
                raise json_body.too_long_keys(key)
            if type(child) not in _LEAVES:
                _check(child, left - 1, characters - len(key))
    elif isinstance(tree, list | tuple):
        if left == 0:
            raise CodecError("nested deeper than max_depth")
        for child in tree:
            if type(child) not in _LEAVES:
                _check(child, left - 1, characters)
    elif tree is not None and not isinstance(tree, _ENCODABLE):
        raise CodecError(f"expected arrays, numbers, strings or bytes, got {type(tree).__name__}")


def _where(tree: Nested) -> str:
    """Return the path of the first leaf without an encoding, for a message."""
    try:
        for path, leaf in nested.items(tree):
            if path and not _encodes(leaf):
                return f"{path}: "
    except (SpecError, RecursionError):  # no path leads to a key that is no string, or a cycle
        pass
    return ""


def _encodes(leaf: Any) -> bool:
    try:
        _check(leaf, _UNBOUNDED, _UNBOUNDED)
        _ENCODER.encode(leaf)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _encode_array(value: Any) -> msgspec.msgpack.Ext:
    if not isinstance(value, np.ndarray | np.generic):
        raise TypeError(f"expected arrays, numbers, strings or bytes, got {type(value).__name__}")
    header = _header(value.dtype, value.shape)
    little = value.astype(value.dtype.newbyteorder("<"), order="C", copy=False)
    return msgspec.msgpack.Ext(ARRAY_EXTENSION, header + little.tobytes())


@functools.lru_cache(maxsize=1024)
def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    name = dtype.newbyteorder("<").str.encode()
    if name not in _DTYPES:
        known = ", ".join(str(known) for known in _DTYPES.values())
        raise TypeError(f"expected an array of one of {known}, got {dtype}")
    if len(shape) > _MAX_NDIM or max(shape, default=0) > _MAX_SIZE:
        raise TypeError(
            f"expected {_MAX_NDIM} dimensions at most, each below 2**32, got shape {shape}"
        )
    return struct.pack(f"<B{len(name)}sB{len(shape)}I", len(name), name, len(shape), *shape)


def _decode_array(code: int, data: memoryview) -> Any:
    if code != ARRAY_EXTENSION:
        raise CodecError(f"unknown extension type {code}")
    dtype, shape, offset = _read_header(data)
    count = 1
    for size in shape:
        count *= size
    if len(data) - offset != count * dtype.itemsize:
        raise CodecError(
            f"an array {dtype} {shape} needs {count * dtype.itemsize} bytes, "
            f"got {len(data) - offset}"
        )
    if dtype.kind == "b" and not _are_bools(data[offset:]):
        raise CodecError("a bool array has bytes that are neither 0 nor 1")
    return np.frombuffer(data, dtype, count, offset).reshape(shape)


def _are_bools(data: memoryview) -> bool:
    if len(data) > _SMALL_BYTES:
        return int(np.frombuffer(data, np.uint8).max()) <= 1
    return not bytes(data).strip(b"\0\1")


def _read_header(data: memoryview) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """Return dtype, shape and the offset of the raw bytes."""
    try:
        at = 1 + data[0]
        dtype = _dtype(bytes(data[1:at]))
        ndim = data[at]
        if ndim > _MAX_NDIM:
            raise CodecError(f"an array of {ndim} dimensions, at most {_MAX_NDIM}")
        shape = struct.unpack_from(f"<{ndim}I", data, at + 1)
    except (IndexError, struct.error) as error:
        raise CodecError("an array's header is cut off") from error
    return dtype, shape, at + 1 + 4 * ndim


def _dtype(name: bytes) -> np.dtype[Any]:
    if name not in _DTYPES:
        raise CodecError(f"unknown dtype {name!r}")
    return _DTYPES[name]


_DTYPES = {
    np.dtype(name).newbyteorder("<").str.encode(): np.dtype(name).newbyteorder("<")
    for name in ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
}


class _Brief(reprlib.Repr):
    """Shows the beginning of a long value."""

    def repr_bytes(self, value: bytes, level: int) -> str:
        return repr(value[: self.maxstring])


_BRIEF = _Brief()
_ENCODER = msgspec.msgpack.Encoder(enc_hook=_encode_array)
_DECODER = msgspec.msgpack.Decoder(ext_hook=_decode_array)
