"""The admin port of `bray serve`, which takes new weights."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import msgspec
import numpy as np
import safetensors
from numpy.typing import NDArray

from bray_core.errors import ConfigError, NotFoundError, ServiceError, SpecError
from bray_core.protocols import Weights
from bray_server import PageReply, PageRequest
from bray_server.limits.access import LOOPBACK, is_own_name, is_same_origin

Publish = Callable[[str, Weights], int]
"""Model name and weights → version."""

_WEIGHTS = re.compile(r"/models/([^/]+)/weights")
_DTYPE = re.compile(r"([FIU])(16|32|64)")
_TYPES = ("application/octet-stream", "application/vnd.safetensors", "application/x-safetensors")
"""Content types of a safetensors file. A form of another site's page cannot send any of them."""


class AdminPages:
    """`PUT /models/NAME/weights`, the body a safetensors file: makes them current.

    A request that another site's page may have made a browser send is refused: one with a foreign
    `Origin`, with a `Host` that is no name of this machine where there is no token, or with a
    content type that needs no permission.

    Args:
        publish: Makes weights current.
        host: Address that the port listens at.
        has_token: Whether the port asks for a token.
    """

    def __init__(
        self, publish: Publish, *, host: str = "127.0.0.1", has_token: bool = False
    ) -> None:
        self._publish = publish
        self._host = host
        self._has_token = has_token

    async def answer(self, request: PageRequest) -> PageReply:
        """Answer one request, which `check` let pass. Raises ServiceError."""
        name = unquote(request.path.split("/")[2])
        try:
            version = await asyncio.to_thread(self._read_and_publish, name, request.body)
        except NotFoundError as error:
            raise ServiceError("not_found", str(error)) from error
        except (SpecError, ConfigError) as error:
            raise ServiceError("bad_request", str(error)) from error
        return PageReply(msgspec.json.encode({"version": version}))

    def check(self, request: PageRequest) -> None:
        """Look at all but the body. Raises ServiceError."""
        refusal = self._refusal(request)
        if refusal is not None:
            raise ServiceError("forbidden", refusal)
        if _WEIGHTS.fullmatch(request.path) is None:
            raise ServiceError("not_found", "expected /models/NAME/weights")
        request.expect("PUT", "POST")
        if not _is_weights_file(request):
            expected = f"content-type: expected {_TYPES[0]}, and a safetensors file as the body"
            raise ServiceError("unsupported_media_type", expected)

    def _read_and_publish(self, name: str, body: bytes) -> int:
        return self._publish(name, _read(body))

    def _refusal(self, request: PageRequest) -> str | None:
        """Return why a request may be another site's, or None."""
        host, origin, site = (
            request.headers.get(name, b"").decode("latin-1") or None
            for name in (b"host", b"origin", b"sec-fetch-site")
        )
        if not self._has_token and not is_own_name(host or "", self._host):
            return f"host: expected one of {', '.join(LOOPBACK)}, or start with --token-env"
        if not is_same_origin(host or "", origin, site):
            return "origin: expected a request of a program, got one of a page of another site"
        return None

    def error(self, error: ServiceError, status: int) -> PageReply:
        """Return an error as the server's own pages do."""
        content = {"error": {"code": error.code, "message": error.message}}
        return PageReply(msgspec.json.encode(content), status)


class NoService:
    """A service that refuses every call: for a port that serves pages only."""

    def __init__(self, why: str) -> None:
        self._why = why

    async def tick(self, body: bytes) -> bytes:
        """Refuse."""
        raise ServiceError("bad_request", self._why)


def _is_weights_file(request: PageRequest) -> bool:
    """Return whether the content type is one of a file of weights.

    A PUT may leave it out, as `curl --upload-file` does: no browser sends one to another site
    without asking first, which nothing here permits.
    """
    given = request.headers.get(b"content-type", b"").decode("latin-1")
    kind = given.partition(";")[0].strip().lower()
    return kind in _TYPES or (not given and request.method == "PUT")


def _read(body: bytes) -> Weights:
    try:
        tensors = safetensors.deserialize(body)  # type: ignore[no-untyped-call]
    except (safetensors.SafetensorError, LookupError, TypeError, AttributeError) as error:
        raise SpecError(f"body: expected a safetensors file: {error}") from None
    return {name: _array(name, **tensor) for name, tensor in tensors}


def _array(name: str, dtype: str, shape: list[int], data: bytearray) -> NDArray[Any]:
    """Return a tensor of a safetensors file; bfloat16, which numpy has not, as float32.

    Raises:
        SpecError: Its dtype is none of numpy's either.
    """
    if dtype == "BF16":  # the upper half of a float32
        bits = np.frombuffer(data, "<u2").astype("<u4") << 16
        return bits.view("<f4").reshape(shape)
    found = _DTYPE.fullmatch(dtype)
    if found is None:
        raise SpecError(f"body: {name}: expected float32, float16 or bfloat16, got {dtype}")
    numpy_dtype = f"<{found[1].lower()}{int(found[2]) // 8}"
    return np.frombuffer(data, numpy_dtype).reshape(shape)
