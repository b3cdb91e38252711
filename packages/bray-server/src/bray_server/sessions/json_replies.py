"""Answers in JSON to requests in JSON, for services that know the codec alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any

from bray_core import codec, json_body
from bray_core.errors import CodecError, ServiceError
from bray_core.json_body import JsonBody
from bray_server.sessions.services import not_async

_FEW_BYTES = 16 * 1024
"""Size of a reply up to which it is converted on the event loop."""


def in_form_of(body: Any, work: Coroutine[Any, Any, bytes]) -> Coroutine[Any, Any, bytes]:
    """Return the work of a service on a request, which answers in the form of the request's body.

    Args:
        body: Body of the request.
        work: What the service does on it.

    Raises:
        ServiceError: `service_error`: the service's method is not async.
    """
    if not isinstance(work, Coroutine):
        raise not_async(work)
    return _answer(body, work) if type(body) is JsonBody else work


async def _answer(body: JsonBody, work: Awaitable[bytes]) -> bytes:
    """Raises ServiceError: `bad_request`: the service could not read the body."""
    try:
        reply = await work
    except CodecError as error:
        if body.is_malformed:
            raise ServiceError("bad_request", f"body: {error}") from error
        raise
    return await answer_in_json(body, reply)


async def answer_in_json(body: JsonBody, reply: bytes) -> bytes:
    """Return the reply to a body in JSON in JSON too, if the service has read and answered it
    by the codec; anything else as it is.

    Raises:
        ServiceError: `service_error`: the reply holds what JSON cannot say, or is too large.
    """
    if not body.is_read or type(reply) is not bytes or not reply:
        return reply
    if len(reply) <= _FEW_BYTES:
        return _converted(reply)
    return await asyncio.to_thread(_converted, reply)


def _converted(reply: bytes) -> bytes:
    if len(reply) > json_body.MAX_BYTES:
        raise ServiceError(
            "service_error",
            f"reply: expected at most {json_body.MAX_BYTES} bytes to send as JSON, "
            f"got {len(reply)}: ask in bray's codec",
        )
    try:
        tree = codec.decode(reply, trusted=True)
    except CodecError:  # the service answers in a form of its own
        return reply
    try:
        return json_body.write(tree)
    except CodecError as error:
        raise ServiceError("service_error", f"reply: {error}") from error
