"""Messages between the processes of a launch and its hub: frames of msgpack.

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
from bray_core.metrics.media import Media
from bray_core.metrics.sample import Sample

MAX_FRAME_BYTES = 32 * 2**20
HEADER = struct.Struct("<I")

_Short = Annotated[str, msgspec.Meta(max_length=200)]
_Long = Annotated[str, msgspec.Meta(max_length=2**16)]


class Hello(msgspec.Struct, tag=True):
    """First message of a process: its token, and who it is."""

    token: _Short
    component: _Short
    """What the process is, such as the name of its pool."""
    rank: int
    pid: int


class Push(msgspec.Struct, tag=True):
    """Metrics that a process recorded since its last push."""

    poll: int
    """Number of the poll that this answers; 0 where nobody asked."""
    samples: list[Sample]
    media: list[Media] = msgspec.field(name="shown")


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
    """A question for one metric: see `bray_core.metrics.query`."""

    id: int
    name: _Short
    window_s: Annotated[float, msgspec.Meta(gt=0)]
    labels: dict[_Short, _Short]


class Poll(msgspec.Struct, tag=True):
    """The hub asks a process for a `Push`."""

    id: int


class HubAnswer(msgspec.Struct, tag=True):
    """Answer to a `Query`."""

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
    """Return the length in a frame's header. Raises CodecError: it is beyond the bound."""
    (size,) = HEADER.unpack(header)
    if size > MAX_FRAME_BYTES:
        raise CodecError(f"frame: expected {MAX_FRAME_BYTES} bytes at most, got {size}")
    return int(size)


def decode_to_hub(body: bytes) -> ToHub:
    """Read a worker's message. Raises CodecError: it is none."""
    try:
        return _to_hub.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise CodecError(f"frame: {error}") from None


def decode_to_worker(body: bytes) -> ToWorker:
    """Read the hub's message. Raises CodecError: it is none."""
    try:
        return _to_worker.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise CodecError(f"frame: {error}") from None
