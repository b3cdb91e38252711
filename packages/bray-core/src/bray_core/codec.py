"""The wire codec: nested arrays as msgpack, arrays as extension type 1.

An array's payload is: length of the dtype string (u8), the dtype string (`<f4`), number of
dimensions (u8), each dimension (u32, little-endian), then the raw little-endian bytes in C order.
`docs/codec.md` describes it for other languages.
"""

from __future__ import annotations

import functools
import struct
from typing import Any

import msgspec
import numpy as np

from bray_core.errors import CodecError
from bray_core.nested import Nested

ARRAY_EXTENSION = 1
MAX_BYTES = 16 * 1024 * 1024
MAX_DEPTH = 32
_MAX_NDIM = 32
_KINDS = "biufc"


def encode(tree: Nested) -> bytes:
    """Encode nested arrays; None, bool, int, float, str and bytes may be leaves too.

    Tuples become lists on the other side, numpy scalars arrays without dimensions.

    Raises:
        CodecError: a leaf has a type or dtype that has no encoding.
    """
    try:
        return _ENCODER.encode(tree)
    except (TypeError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise CodecError(f"encode: {error}") from error


def decode(
    data: bytes | bytearray | memoryview, *, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH
) -> Nested:
    """Decode what `encode` made. Arrays are read-only views into `data`.

    Args:
        data: the encoded bytes; nothing in them is trusted.
        max_bytes: longer data is refused before it is looked at.
        max_depth: deeper nesting of lists and dicts is refused.

    Raises:
        CodecError: the data is malformed or exceeds a bound.
    """
    if len(data) > max_bytes:
        raise CodecError(f"decode: {len(data)} bytes exceed max_bytes={max_bytes}")
    try:
        tree = _DECODER.decode(data)
    except CodecError:
        raise
    except (msgspec.MsgspecError, RecursionError, ValueError, TypeError) as error:
        raise CodecError(f"decode: {error}") from error
    _check_depth(tree, max_depth)
    return tree


def _check_depth(tree: Nested, left: int) -> None:
    if isinstance(tree, dict | list):
        if left == 0:
            raise CodecError("decode: nested deeper than max_depth")
        for child in tree.values() if isinstance(tree, dict) else tree:
            if isinstance(child, dict | list):
                _check_depth(child, left - 1)


def _encode_array(value: Any) -> msgspec.msgpack.Ext:
    if not isinstance(value, np.ndarray | np.generic):
        raise TypeError(f"expected arrays, numbers, strings or bytes, got {type(value).__name__}")
    if value.dtype.kind not in _KINDS:
        raise TypeError(f"expected a bool, integer, float or complex array, got {value.dtype}")
    little = value.astype(value.dtype.newbyteorder("<"), order="C", copy=False)
    return msgspec.msgpack.Ext(
        ARRAY_EXTENSION, _header(little.dtype, value.shape) + little.tobytes()
    )


@functools.lru_cache(maxsize=1024)
def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    name = dtype.str.encode()
    return struct.pack(f"<B{len(name)}sB{len(shape)}I", len(name), name, len(shape), *shape)


def _decode_array(code: int, data: memoryview) -> Any:
    if code != ARRAY_EXTENSION:
        raise CodecError(f"decode: unknown extension type {code}")
    dtype, shape, offset = _read_header(data)
    count = 1
    for size in shape:
        count *= size
    if len(data) - offset != count * dtype.itemsize:
        raise CodecError(
            f"decode: an array {dtype} {shape} needs {count * dtype.itemsize} bytes, "
            f"got {len(data) - offset}"
        )
    return (
        np.frombuffer(data, dtype, count, offset).reshape(shape)
        if count
        else np.empty(shape, dtype)
    )


def _read_header(data: memoryview) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """Return dtype, shape and the offset of the raw bytes."""
    try:
        at = 1 + data[0]
        dtype = _dtype(bytes(data[1:at]))
        ndim = data[at]
        if ndim > _MAX_NDIM:
            raise CodecError(f"decode: an array of {ndim} dimensions, at most {_MAX_NDIM}")
        shape = struct.unpack_from(f"<{ndim}I", data, at + 1)
    except (IndexError, struct.error) as error:
        raise CodecError("decode: an array's header is cut off") from error
    return dtype, shape, at + 1 + 4 * ndim


def _dtype(name: bytes) -> np.dtype[Any]:
    if name not in _DTYPES:
        raise CodecError(f"decode: unknown dtype {name!r}")
    return _DTYPES[name]


_DTYPES = {
    np.dtype(name).newbyteorder("<").str.encode(): np.dtype(name).newbyteorder("<")
    for name in ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
}
_ENCODER = msgspec.msgpack.Encoder(enc_hook=_encode_array)
_DECODER = msgspec.msgpack.Decoder(ext_hook=_decode_array)
