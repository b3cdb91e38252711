"""Delta encoding: observations that change little between ticks, as difference and zlib.

A key frame carries all of a packed observation, a difference frame the XOR with the one before;
both are compressed. Exact for every dtype, because it works on bytes. One encoder and one decoder
a session; after loss or reconnect the decoder asks for a key frame.

Frame: kind u8 (0 key, 1 difference), counter u32 little-endian, zlib data.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np

from bray_core.errors import CodecError
from bray_core.layout import Block, Layout
from bray_core.nested import Nested

_HEADER = struct.Struct("<BI")
_KEY, _DIFFERENCE = 0, 1
_LEVEL = 1
_COUNTER_MASK = 0xFFFFFFFF


class DeltaEncoder:
    """Encodes observations of one layout, one after the other."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._before: Block | None = None
        self._counter = 0

    def encode(self, tree: Nested, *, key: bool = False) -> bytes:
        """Return a frame; the first one, and with `key`, is a key frame."""
        block = self._layout.pack(tree)
        if key or self._before is None:
            kind, data = _KEY, block
        else:
            kind, data = _DIFFERENCE, block ^ self._before
        self._before = block
        self._counter = (self._counter + 1) & _COUNTER_MASK
        return _HEADER.pack(kind, self._counter) + zlib.compress(data.tobytes(), _LEVEL)


class DeltaDecoder:
    """Decodes what one `DeltaEncoder` wrote."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._before: Block | None = None
        self._counter = 0

    def decode(self, frame: bytes) -> Nested:
        """Return the observation, leaves as views of a block of its own.

        Raises:
            CodecError: the frame is broken, or a frame before it is missing: ask for a key frame.
        """
        if len(frame) < _HEADER.size:
            raise CodecError(f"delta: a frame of {len(frame)} bytes is cut off")
        kind, counter = _HEADER.unpack_from(frame)
        if kind not in (_KEY, _DIFFERENCE):
            raise CodecError(f"delta: expected kind 0 or 1, got {kind}")
        block = self._unpack(frame[_HEADER.size :])
        if kind == _DIFFERENCE:
            if self._before is None or counter != (self._counter + 1) & _COUNTER_MASK:
                raise CodecError(
                    f"delta: frame {counter} does not follow {self._counter}: ask for a key frame"
                )
            block ^= self._before
        self._before = block
        self._counter = counter
        return self._layout.views(block)

    def _unpack(self, data: bytes) -> Block:
        """Return the uncompressed block, never more than the layout's size."""
        nbytes = self._layout.nbytes
        unpacker = zlib.decompressobj()
        try:
            raw = unpacker.decompress(data, nbytes)
        except zlib.error as error:
            raise CodecError(f"delta: not zlib data: {error}") from error
        if len(raw) != nbytes or not unpacker.eof:
            raise CodecError(f"delta: expected {nbytes} bytes of data, got another number")
        return np.frombuffer(raw, np.uint8).copy()
