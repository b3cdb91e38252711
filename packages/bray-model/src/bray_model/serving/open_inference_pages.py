"""The Open Inference Protocol v2 as pages of a server: `/v2/...`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import AsyncIterator, Hashable, Sequence
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
from bray_model.serving.infer_message import HEADER, LARGE_BYTES, is_large
from bray_model.serving.infer_request import MAX_REPLY_BYTES, InferRequest
from bray_model.serving.model_description import model_config, model_metadata
from bray_model.serving.read_requests import ReadRequest, answer_plain, page_reply
from bray_model.serving.repository import ExportRepository, ServedModel
from bray_model.serving.sequences import SequenceSteps
from bray_server import PageReply, PageRequest

logger = logging.getLogger(__name__)

_MODEL = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?(?:/(infer|ready|config))?")
_INFER = re.compile(r"/v2/models/([^/]+)/infer")
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
            request.expect("POST" if action == "infer" else "GET")
            model = self._find(name, number)
            if action == "infer":
                return await self._infer(name, model, request)
            return self._about(name, model, action)
        except BrayError as error:
            # No variable holds the new error: with its traceback it would hold the body.
            if (code := _code_of(error)) is None:
                raise
            raise ServiceError(code, str(error)) from error

    def group(self, request: PageRequest) -> Hashable | None:
        """Return the model of a request that only asks it for some rows; None for any other."""
        if request.read is None:
            request.read = self._read_ahead(request) or False
        read = request.read
        return read.model if isinstance(read, ReadRequest) and read.is_plain else None

    def _read_ahead(self, request: PageRequest) -> ReadRequest | None:
        """Read a request for inference; None: it is long, or wrong, or for something else."""
        found = _INFER.fullmatch(request.path)
        if found is None or request.method != "POST" or len(request.body) > LARGE_BYTES:
            return None
        if b"content-encoding" in request.headers:
            return None
        try:
            name = unquote(found[1])
            model = _now(self._repository.get(name))
            asked = self._read_now(request, request.headers.get(HEADER), model)
        except BrayError:  # `answer` says it
            return None
        return ReadRequest(name, model, asked)

    async def answer_together(
        self, requests: Sequence[PageRequest]
    ) -> Sequence[PageReply | ServiceError]:
        """Answer requests of one group in few batches; a bad one among them fails alone."""
        read = [request.read for request in requests]
        found = await answer_plain([one for one in read if isinstance(one, ReadRequest)])
        replies: dict[int, PageReply | ServiceError] = {
            index: reply for index, reply in enumerate(found) if isinstance(reply, PageReply)
        }
        others = [index for index in range(len(requests)) if index not in replies]
        settled = (self._settled(requests[index], found[index]) for index in others)
        replies.update(zip(others, await asyncio.gather(*settled), strict=True))
        return [replies[index] for index in range(len(requests))]

    async def _settled(self, request: PageRequest, found: object) -> PageReply | ServiceError:
        """Ask for a reply alone, or return what is wrong."""
        try:
            if isinstance(found, BrayError):
                code = _code_of(found)
                raise found if code is None else ServiceError(code, str(found))
            return await self.answer(request)
        except ServiceError as error:
            return error.with_traceback(None)
        except Exception as error:  # a request boundary: it becomes a reply
            logger.exception("a request failed")
            return ServiceError("service_error", f"{type(error).__name__}: {error}")

    def error(self, error: ServiceError, status: int) -> PageReply:
        """Return an error as the protocol has it."""
        return _json({"error": f"{error.code}: {error.message}"}, status)

    def _find(self, name: str, number: str | None) -> Model | ServedModel:
        if number is None:
            return self._repository.get(name)
        return self._repository.version(name, number)

    def _general(self, request: PageRequest) -> PageReply:
        if request.path == _INDEX:
            request.expect("POST")
            return _json(self._index())
        known: dict[str, Any] = {
            "/v2": {"name": "bray", "version": version("bray-model"), "extensions": _EXTENSIONS},
            _LIVE: {"live": True},
            _READY: {"ready": True},
        }
        path = request.path.rstrip("/")
        if path not in known:
            raise ServiceError("not_found", f"expected /step or one of /v2, got {path[:100]!r}")
        request.expect("GET")
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
            return page_reply(await asyncio.to_thread(asked.reply, name, answer))
        return page_reply(asked.reply(name, answer))

    async def _read(self, request: PageRequest, model: Model) -> InferRequest:
        if isinstance(request.read, ReadRequest) and request.read.model is model:
            return request.read.asked
        json_bytes = request.headers.get(HEADER)
        if is_large(request.body, json_bytes):
            return await asyncio.to_thread(self._read_now, request, json_bytes, model)
        return self._read_now(request, json_bytes, model)

    def _read_now(
        self, request: PageRequest, json_bytes: bytes | None, model: Model
    ) -> InferRequest:
        return InferRequest(
            request.body,
            json_bytes,
            model.signature,
            max_rows=model.config.max_queue_rows,
            max_reply_bytes=self._max_reply_bytes,
        )


def _code_of(error: BrayError) -> str | None:
    """Return the code by which a client is told; None: it has one, or is no client's business."""
    if isinstance(error, ServiceError):
        return None
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), None)


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


def _json(content: Any, status: int = 200) -> PageReply:
    return PageReply(msgspec.json.encode(content), status)
