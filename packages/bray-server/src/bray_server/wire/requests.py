"""Requests and replies of a client, and errors of the connection."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal, NamedTuple

from bray_core.errors import ServiceError
from bray_core.json_body import JsonBody
from bray_server.wire.frames import JSON, Frame, Kind, unpack_error

RequestKind = Literal["start", "tick", "end", "call"]

KINDS = {
    "start": Kind.START,
    "tick": Kind.TICK,
    "end": Kind.END,
    "call": Kind.CALL,
}
JSON_TYPE = "application/json"
MAX_REPLY_BYTES = 1 << 30
MAX_SESSION_BYTES = 65535


class Request(NamedTuple):
    """One request of an `exchange`."""

    kind: RequestKind
    session: str
    body: bytes
    """Body in the codec or a form of the service's own; a `JsonBody` is sent as JSON."""


Reply = bytes | ServiceError
"""A reply: a body, or the server's error."""


def reply_of(frame: Frame) -> Reply:
    """Return the body of a reply frame, or the error of an error frame."""
    if frame[0] == Kind.ERROR:
        return ServiceError(*unpack_error(frame[4]))
    return JsonBody(frame[4]) if frame[1] & JSON else frame[4]


def http_reply(body: bytes, content_type: str | None) -> bytes:
    """Return the body of a reply that is 200: a `JsonBody` where it is JSON."""
    return JsonBody(body) if content_type == JSON_TYPE else body


def http_error(status: int, body: bytes) -> ServiceError:
    """Return the error in a reply that is not 200, whatever its body holds."""
    try:
        error = json.loads(body)["error"]
        return ServiceError(str(error["code"]), str(error["message"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return ServiceError("bad_request", f"HTTP {status}: {body[:200]!r}")


def unreachable(address: object, error: OSError) -> ServiceError:
    """Return the error for a connection that could not be made."""
    return ServiceError("unreachable", f"nothing answers at {address}: {error.strerror or error}")


RETRY_AFTER_S = 0.5
"""Pause before a request that was answered `not_ready` is sent again."""
MAKES_WAY = ("connection_lost", "unreachable")
"""Errors of a server that was not ready, and now makes way for the one that will be."""


def not_ready(replies: Sequence[Reply]) -> list[int]:
    """Return which requests are to be sent again: the policy that they ask for is being made, and
    nothing was executed."""
    return [
        index
        for index, reply in enumerate(replies)
        if isinstance(reply, ServiceError) and reply.code == "not_ready"
    ]
