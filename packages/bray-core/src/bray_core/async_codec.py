"""Decoding on an event loop: a message of many values is decoded in a thread."""

from __future__ import annotations

import asyncio
from functools import partial

from bray_core import codec
from bray_core.codec_cost import has_few_values
from bray_core.nested import Nested

_FEW_VALUES = 2_000
"""Decoded where they are: that takes a few milliseconds at most."""


async def decode(data: bytes, *, max_bytes: int = codec.MAX_BYTES) -> Nested:
    """Decode as `codec.decode` does, without holding up the event loop for long.

    Args:
        data: the encoded bytes; nothing in them is trusted.
        max_bytes: longer data is refused before it is looked at. Pass `len(data)` where a server
            has bounded the body already.

    Raises:
        CodecError: the data is malformed or exceeds a bound.
    """
    if len(data) > max_bytes or has_few_values(data, _FEW_VALUES):
        return codec.decode(data, max_bytes=max_bytes)
    return await asyncio.to_thread(partial(codec.decode, data, max_bytes=max_bytes))
