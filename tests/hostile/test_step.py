"""Hostile ticks and calls, over TCP and HTTP."""

from __future__ import annotations

import pytest
from hostile_harness import HostileRequest, Target, check

from bray_core import codec
from bray_server.frames import Kind, pack

MIB = 1024**2
_START = pack(Kind.START, 1, "hostile", codec.encode({}))
_END = pack(Kind.END, 3, "hostile", b"")


def tick(body: bytes) -> bytes:
    """Return a session's start, one tick, and a ping: the last answer is the pong."""
    return _START + pack(Kind.TICK, 2, "hostile", body)


def empty_maps(size: int) -> bytes:
    """Return a body of the codec: a list of `size` empty maps, a byte each."""
    return b"\xdd" + size.to_bytes(4, "big") + b"\x80" * size


REQUESTS = [
    HostileRequest(
        name="16 MiB of empty maps in a tick",
        port="tcp",
        data=lambda: tick(empty_maps(16 * MIB - 5)),
        answer="error bad_request",
        num_answers=2,
    ),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: request.name)
def test_no_request_costs_more_than_its_size_justifies(
    target: Target, request_: HostileRequest
) -> None:
    check(request_, target.attack(request_))
