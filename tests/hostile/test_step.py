"""Hostile bodies of ticks and calls, over TCP and HTTP."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hostile_harness import HostileRequest, Target, check

from bray_core import codec
from bray_server.wire.frames import JSON, Kind, pack

pytestmark = pytest.mark.long

MIB = 1024**2
_START = pack(Kind.START, 1, "hostile", codec.encode({}))
_LARGEST = 16 * MIB


def tick(body: bytes, flags: int = 0) -> bytes:
    """Return a session's start and one tick."""
    return _START + pack(Kind.TICK, 2, "hostile", body, flags)


def post(kind: str, body: bytes, content_type: str = "application/octet-stream") -> bytes:
    """Return an HTTP request of the session `hostile` that closes its connection."""
    lines = ("POST /step HTTP/1.1", "session: hostile", f"step_kind: {kind}", "Connection: close")
    lines = (*lines, f"Content-Type: {content_type}")
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


def full_of(item: bytes, size: int = _LARGEST) -> bytes:
    """Return a body of the codec: a list full of one item."""
    count = (size - 5) // len(item)
    return b"\xdd" + count.to_bytes(4, "big") + item * count


def array(payload: bytes) -> bytes:
    """Return an array's extension."""
    return msgspec.msgpack.encode(msgspec.msgpack.Ext(codec.ARRAY_EXTENSION, payload))


def seen(observation: bytes) -> bytes:
    """Return the body of a tick whose observation is given in bytes of the codec."""
    return b"\x81" + msgspec.msgpack.encode("observation") + observation


BODIES: dict[str, Callable[[], bytes]] = {
    "empty maps": lambda: full_of(b"\x80"),
    "empty lists": lambda: full_of(b"\x90"),
    "maps of one": lambda: full_of(b"\x81\xa1a\x01"),
    "lists of one": lambda: full_of(b"\x91\x01"),
    "nested lists": lambda: b"\x91" * (_LARGEST - 1) + b"\x01",
    "small integers": lambda: full_of(b"\x01"),
    "floats": lambda: full_of(b"\xcb" + b"\x3f" * 8),
    "short strings": lambda: full_of(b"\xa2ab"),
    "long strings": lambda: full_of(b"\xda\x01\x00" + b"x" * 256),
    "empty binaries": lambda: full_of(b"\xc4\x00"),
    "arrays without dimensions": lambda: full_of(array(b"\x03|i1\x00a")),
    "arrays of 32 dimensions": lambda: full_of(array(b"\x03|i1\x20" + b"\1\0\0\0" * 32 + b"a" * 9)),
    "as many arrays as are taken": lambda: full_of(
        array(b"\x03|i1\x01" + (200).to_bytes(4, "little") + b"a" * 200)
    ),
    "maps that claim to be long": lambda: full_of(b"\xdf\xff\xff\xff\xff"),
    "a wide string": lambda: seen(msgspec.msgpack.encode("\N{PILE OF POO}" * (4 * MIB - 50))),
    "one wide character": lambda: seen(
        msgspec.msgpack.encode("x" * (_LARGEST - 50) + "\N{PILE OF POO}")
    ),
    "a bool array": lambda: seen(bools(_LARGEST - 50)),
    "a bool array that is none": lambda: seen(bools(_LARGEST - 50)[:-1] + b"\2"),
    "an array of another shape": lambda: seen(
        array(b"\x03<f8\x01" + (2 * MIB - 8).to_bytes(4, "little") + bytes(16 * MIB - 64))
    ),
    "a list of long and short strings": lambda: seen(
        b"\xdd" + (5001).to_bytes(4, "big") + b"\xdb\x00\x03\x0d\x40" + b"a" * 200_000
        + b"\xa1b" * 5000
    ),
    "many unknown keys": lambda: (
        b"\xdf" + (30_000).to_bytes(4, "big")
        + b"".join(b"\xd9\x64" + b"%0100d" % number + b"\x01" for number in range(30_000))
    ),
    "one huge key": lambda: b"\x81\xc6\x00\xf0\x00\x00" + b"\xff" * (15 * MIB) + b"\x01",
    "many leaves below a long key": lambda: below(b"\xda\x0f\xa0" + b"k" * 4000, 60_000),
    "many leaves below a huge key": lambda: below(b"\xdb\0\x20\0\0" + b"k" * 2 * MIB, 30_000),
    "many leaves below many keys": lambda: seen(
        (b"\x81\xd9\x21" + b"k" * 33) * 29 + full_of(b"\x01", 60_000)
    ),
    "one key twice and again": lambda: (
        b"\xdf" + (30_000).to_bytes(4, "big") + b"\xabobservation\x01" * 30_000
    ),
}  # fmt: skip


def below(key: bytes, count: int) -> bytes:
    """Return the body of a tick whose observation has many leaves under a key."""
    return seen(b"\x81" + key + full_of(b"\x01", count))


def bools(size: int) -> bytes:
    """Return an array of bools in the codec."""
    return array(b"\x03|b1\x01" + size.to_bytes(4, "little") + b"\1" * size)


def full_of_json(item: bytes, size: int = _LARGEST) -> bytes:
    """Return a body in JSON: a tick whose observation is a list full of one item."""
    head, tail = b'{"observation":[', b"]}"
    count = (size - len(head) - len(tail) - len(item)) // (len(item) + 1)
    return head + (item + b",") * count + item + tail


JSON_BODIES: dict[str, Callable[[], bytes]] = {
    "numbers": lambda: full_of_json(b"1"),
    "as many numbers as are taken": lambda: full_of_json(b"0.25", 5 * 262_000),
    "as many large integers as are taken": lambda: full_of_json(b"1" + b"0" * 60, 4 * MIB - 99),
    "strings": lambda: full_of_json(b'"ab"', 225_000),
    "short strings beside a long one": lambda: (
        full_of_json(b'"b"', 20_000)[:-2] + b',"' + b"a" * 200_000 + b'"]}'
    ),
    "empty objects": lambda: full_of_json(b"{}"),
    "as many empty objects as are taken": lambda: full_of_json(b"{}", 3 * 65_000),
    "as many objects of one as are taken": lambda: full_of_json(b'{"a":1}', 8 * 21_000),
    "as many lists of one and two as are taken": lambda: full_of_json(b"[1],[1,2]", 10 * 32_000),
    "as many rows as are taken": lambda: full_of_json(b"[257,2.5,1e9]", 14 * 65_000),
    "opening brackets": lambda: b"[" * _LARGEST,
    "opening brackets that are few": lambda: b"[" * 60_000,
    "one key again and again": lambda: b"{" + b'"observation":1,' * 32_000 + b'"observation":1}',
    "a wide string": lambda: b'{"observation":"' + "\N{PILE OF POO}".encode() * (MIB - 50) + b'"}',
    "one wide character": lambda: (
        b'{"observation":"' + b"x" * (4 * MIB - 50) + "\N{PILE OF POO}".encode() + b'"}'
    ),
    "escapes": lambda: b'{"observation":"' + b"\\ud83d\\ude00" * (4 * MIB // 12 - 10) + b'"}',
    "a string beyond the bound": lambda: b'{"observation":"' + b"x" * (_LARGEST - 50) + b'"}',
    "one huge key": lambda: b'{"' + b"x" * (4 * MIB - 50) + b'":1}',
    "many leaves below a long key": lambda: (
        b'{"observation":{"' + b"k" * 1_000_000 + b'":[' + b'"",' * 30_000 + b'""]}}'
    ),
    "many leaves below many keys": lambda: (
        b'{"observation":'
        + b'{"%033d":' * 29 % tuple(range(29))
        + b"["
        + b'"",' * 60_000
        + b'""]'
        + b"}" * 30
    ),
    "many unknown keys": lambda: (
        b"{" + b",".join(b'"%0100d":1' % number for number in range(30_000)) + b"}"
    ),
    "blanks": lambda: b" " * (_LARGEST - 50),
}


REQUESTS = (
    [
        HostileRequest(
            name=f"a tick of {what}",
            port="tcp",
            data=lambda make=make: tick(make()),  # type: ignore[misc]
            answer="error bad_request",
            num_answers=2,
        )
        for what, make in BODIES.items()
    ]
    + [
        HostileRequest(
            name=f"a start over HTTP of {what}",
            port="http",
            data=lambda make=BODIES[what]: post("start", make()),  # type: ignore[misc]
            answer="400 bad_request",
        )
        for what in ("empty maps", "as many arrays as are taken", "one huge key")
    ]
    + [
        HostileRequest(
            name=f"a tick in JSON of {what}",
            port="tcp",
            data=lambda make=make: tick(make(), JSON),  # type: ignore[misc]
            answer="error bad_request",
            num_answers=2,
        )
        for what, make in JSON_BODIES.items()
    ]
    + [
        HostileRequest(
            name=f"a start over HTTP in JSON of {what}",
            port="http",
            data=lambda make=JSON_BODIES[what]: post(  # type: ignore[misc]
                "start", make(), "application/json"
            ),
            answer="400 bad_request",
        )
        for what in ("numbers", "opening brackets", "one key again and again")
    ]
)


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: request.name)
def test_no_request_costs_more_than_its_size_justifies(
    target: Target, request_: HostileRequest
) -> None:
    check(request_, target.least_cost(request_))
