"""What an administrator may ask of a serving process, on a port of its own."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from urllib.parse import unquote

import msgspec
import safetensors
import safetensors.numpy

from bray_core.errors import ConfigError, NotFoundError, ServiceError, SpecError
from bray_core.protocols import Weights
from bray_server import PageReply, PageRequest

Publish = Callable[[str, Weights], int]
"""Model name and weights → version."""

_WEIGHTS = re.compile(r"/models/([^/]+)/weights")


class AdminPages:
    """`PUT /models/NAME/weights`, the body a safetensors file: makes them current.

    Args:
        publish: does it.
    """

    def __init__(self, publish: Publish) -> None:
        self._publish = publish

    async def answer(self, request: PageRequest) -> PageReply:
        """Answer one request. Raises ServiceError."""
        match = _WEIGHTS.fullmatch(request.path)
        if match is None:
            raise ServiceError("not_found", "expected /models/NAME/weights")
        if request.method not in ("PUT", "POST"):
            raise ServiceError("method_not_allowed", "/models/NAME/weights: expected PUT")
        try:
            weights = _read(request.body)
            version = await asyncio.to_thread(self._publish, unquote(match[1]), weights)
        except NotFoundError as error:
            raise ServiceError("not_found", str(error)) from error
        except (SpecError, ConfigError) as error:
            raise ServiceError("bad_request", str(error)) from error
        return PageReply(msgspec.json.encode({"version": version}))

    def error(self, error: ServiceError, status: int) -> PageReply:
        """Return an error as the server's own pages do."""
        content = {"error": {"code": error.code, "message": error.message}}
        return PageReply(msgspec.json.encode(content), status)


class NoService:
    """Stands where a server wants a service: only pages are served here."""

    def __init__(self, why: str) -> None:
        self._why = why

    async def tick(self, body: bytes) -> bytes:
        """Refuse."""
        raise ServiceError("bad_request", self._why)


def _read(body: bytes) -> Weights:
    try:
        weights: Weights = safetensors.numpy.load(body)
    except (safetensors.SafetensorError, LookupError, TypeError, AttributeError) as error:
        raise SpecError(f"body: expected a safetensors file: {error}") from None
    return weights
