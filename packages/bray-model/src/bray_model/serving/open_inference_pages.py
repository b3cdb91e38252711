"""The Open Inference Protocol v2 as pages of a server: `/v2/...`."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator
from importlib.metadata import version
from typing import Any
from urllib.parse import unquote

import msgspec

from bray_core.errors import (
    BrayError,
    CapacityError,
    ConfigError,
    DeadlineError,
    NotFoundError,
    ServiceError,
    SpecError,
)
from bray_model.model import Model
from bray_model.serving.infer_message import HEADER, is_large
from bray_model.serving.infer_request import MAX_REPLY_BYTES, InferRequest
from bray_model.serving.model_description import model_config, model_metadata
from bray_model.serving.repository import ExportRepository, ServedModel
from bray_model.serving.sequences import SequenceSteps
from bray_server import PageReply, PageRequest

_MODEL = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?(?:/(infer|ready|config))?")
_INDEX = "/v2/repository/index"
_LIVE, _READY = "/v2/health/live", "/v2/health/ready"
_EXTENSIONS = [
    "binary_tensor_data",
    "model_configuration",
    "model_repository(index)",
    "schedule_policy",
    "sequence",
]
_CODES: dict[type[BrayError], str] = {
    SpecError: "bad_request",
    ConfigError: "bad_request",
    NotFoundError: "not_found",
    CapacityError: "overloaded",
    DeadlineError: "deadline",
}


class OpenInferencePages:
    """Answers clients of the protocol, such as `tritonclient[http]`.

    Args:
        repository: Models that are served.
        max_reply_bytes: Largest size of the reply to one request.
    """

    public = frozenset({_LIVE, _READY})
    """Answered without a token, and while the server shuts down."""

    def __init__(
        self, repository: ExportRepository, max_reply_bytes: int = MAX_REPLY_BYTES
    ) -> None:
        self._repository = repository
        self._max_reply_bytes = max_reply_bytes
        self._sequences = SequenceSteps(repository)

    async def answer(self, request: PageRequest) -> PageReply:
        """Answer one request. Raises ServiceError."""
        if b"content-encoding" in request.headers:
            raise ServiceError("bad_request", "Content-Encoding: expected a body as it is, got one")
        match = _MODEL.fullmatch(request.path)
        try:
            if match is None:
                return self._general(request)
            name, number, action = unquote(match[1]), match[2], match[3]
            _expect(request, "POST" if action == "infer" else "GET")
            model = self._find(name, number)
            if action == "infer":
                return await self._infer(name, model, request)
            return self._about(name, model, action)
        except BrayError as error:
            if isinstance(error, ServiceError):
                raise
            for kind, code in _CODES.items():
                if isinstance(error, kind):
                    raise ServiceError(code, str(error)) from error
            raise

    def error(self, error: ServiceError, status: int) -> PageReply:
        """Return an error as the protocol has it."""
        return _json({"error": f"{error.code}: {error.message}"}, status)

    def _find(self, name: str, number: str | None) -> Model | ServedModel:
        if number is None:
            return self._repository.get(name)
        return self._repository.version(name, number)

    def _general(self, request: PageRequest) -> PageReply:
        if request.path == _INDEX:
            _expect(request, "POST")
            return _json(self._index())
        known: dict[str, Any] = {
            "/v2": {"name": "bray", "version": version("bray-model"), "extensions": _EXTENSIONS},
            _LIVE: {"live": True},
            _READY: {"ready": True},
        }
        path = request.path.rstrip("/")
        if path not in known:
            raise ServiceError("not_found", f"expected /step or one of /v2, got {path[:100]!r}")
        _expect(request, "GET")
        if path == _READY and request.is_draining:
            raise ServiceError("draining", "the server is shutting down")
        return _json(known[path])

    def _index(self) -> list[dict[str, str]]:
        return [
            {"name": name, "version": str(model.version), "state": "READY", "reason": ""}
            for name in self._repository.names
            for model in self._repository.models(name)
        ]

    def _about(self, name: str, model: Model | ServedModel, action: str | None) -> PageReply:
        if action == "ready":
            return _json({"name": name, "ready": True})
        if action == "config":
            size = _now(model).config.max_batch_size
            return _json(model_config(name, size, model.signature))
        versions = [model.version for model in self._repository.models(name)]
        return _json(model_metadata(name, versions, model.signature))

    async def _infer(
        self, name: str, model: Model | ServedModel, request: PageRequest
    ) -> PageReply:
        began_s = time.monotonic()
        now = _now(model)  # one that takes its place while the request is read is not asked
        asked = await self._read(request, now)
        async with _deadline(asked.timeout_s, began_s):
            if asked.sequence is None:
                answer = await now.infer(*asked.inputs, batch=True)
            else:
                reply = await self._sequences.elsewhere(name, asked.sequence, request)
                if reply is not None:
                    return reply
                answer = await self._sequences.answer(name, now, asked, request)
        if asked.is_large:
            body, json_bytes = await asyncio.to_thread(asked.reply, name, answer)
        else:
            body, json_bytes = asked.reply(name, answer)
        if json_bytes is None:
            return PageReply(body)
        return PageReply(
            body,
            content_type=b"application/octet-stream",
            headers={b"Inference-Header-Content-Length": b"%d" % json_bytes},
        )

    async def _read(self, request: PageRequest, model: Model) -> InferRequest:
        json_bytes = request.headers.get(HEADER)

        def read() -> InferRequest:
            return InferRequest(
                request.body,
                json_bytes,
                model.signature,
                max_rows=model.config.max_queue_rows,
                max_reply_bytes=self._max_reply_bytes,
            )

        return await asyncio.to_thread(read) if is_large(request.body, json_bytes) else read()


def _now(model: Model | ServedModel) -> Model:
    return model.model if isinstance(model, ServedModel) else model


@contextlib.asynccontextmanager
async def _deadline(timeout_s: float | None, began_s: float) -> AsyncIterator[None]:
    """Bound what the client asked to be bounded. Raises DeadlineError."""
    if timeout_s is None:
        yield
        return
    try:
        async with asyncio.timeout(began_s + timeout_s - time.monotonic()):
            yield
    except TimeoutError as error:
        if isinstance(error, DeadlineError):
            raise
        raise DeadlineError(f"no answer within the timeout of {timeout_s * 1e6:.0f} us") from None


def _expect(request: PageRequest, method: str) -> None:
    if request.method != method and (request.method, method) != ("HEAD", "GET"):
        raise ServiceError("method_not_allowed", f"{request.path[:100]}: expected {method}")


def _json(content: Any, status: int = 200) -> PageReply:
    return PageReply(msgspec.json.encode(content), status)
