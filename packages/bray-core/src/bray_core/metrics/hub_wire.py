"""What the processes of a launch and its hub say to each other: frames of msgpack.

    worker → hub   Hello, then Push (after each Poll, and once more at the end), Logged, Query
    hub → worker   Poll, Answer

A frame is its length (4 bytes, little-endian) and one message. Types and ranges are checked while
it is decoded; whoever sends anything else is cut off.
"""

from __future__ import annotations

import struct
from typing import Annotated, TypeAlias

import msgspec

from bray_core.errors import CodecError
from bray_core.metrics.sample import Sample
from bray_core.metrics.shown import Shown

MAX_FRAME_BYTES = 32 * 2**20
HEADER = struct.Struct("<I")

_Short = Annotated[str, msgspec.Meta(max_length=200)]
_Long = Annotated[str, msgspec.Meta(max_length=2**16)]


class Hello(msgspec.Struct, tag=True):
    """The first message: who calls."""

    token: _Short
    component: _Short
    """Such as the pool's name."""
    rank: int
    pid: int


class Push(msgspec.Struct, tag=True):
    """What a process gathered since its last one."""

    poll: int
    """Number of the poll that this answers; 0: of none."""
    samples: list[Sample]
    shown: list[Shown]


class Line(msgspec.Struct):
    """One record of a log."""

    time_s: float
    level: Annotated[int, msgspec.Meta(ge=0, le=100)]
    logger: _Short
    text: _Long


class Logged(msgspec.Struct, tag=True):
    """Records of the log, oldest first."""

    lines: list[Line]


class Query(msgspec.Struct, tag=True):
    """Asks for a metric; see `bray_core.metrics.query`."""

    id: int
    name: _Short
    window_s: Annotated[float, msgspec.Meta(gt=0)]
    labels: dict[_Short, _Short]


class Poll(msgspec.Struct, tag=True):
    """Asks for a Push."""

    id: int


class HubAnswer(msgspec.Struct, tag=True):
    """To a query."""

    id: int
    sample: Sample


ToHub: TypeAlias = Hello | Push | Logged | Query
ToWorker: TypeAlias = Poll | HubAnswer

_to_hub: msgspec.msgpack.Decoder[ToHub] = msgspec.msgpack.Decoder(ToHub)
_to_worker: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
_encoder = msgspec.msgpack.Encoder()


def encode(message: ToHub | ToWorker) -> bytes:
    """Return a message as a frame."""
    body = _encoder.encode(message)
    return HEADER.pack(len(body)) + body


def frame_bytes(header: bytes) -> int:
    """Return the length that a header tells. Raises CodecError: it is beyond the bound."""
    (size,) = HEADER.unpack(header)
    if size > MAX_FRAME_BYTES:
        raise CodecError(f"frame: expected {MAX_FRAME_BYTES} bytes at most, got {size}")
    return int(size)


def decode_to_hub(body: bytes) -> ToHub:
    """Read what a worker sent. Raises CodecError: it is no message."""
    try:
        return _to_hub.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise CodecError(f"frame: {error}") from None


def decode_to_worker(body: bytes) -> ToWorker:
    """Read what the hub sent. Raises CodecError: it is no message."""
    try:
        return _to_worker.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise CodecError(f"frame: {error}") from None
