"""The Open Inference Protocol v2 as pages of a server: `/v2/...`."""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import Any
from urllib.parse import unquote

import msgspec

from bray_core.errors import (
    BrayError,
    CapacityError,
    DeadlineError,
    NotFoundError,
    ServiceError,
    SpecError,
)
from bray_model.model import Model
from bray_model.open_inference import HEADER, InferRequest, model_config, model_metadata
from bray_model.repository import Repository
from bray_model.served_model import ServedModel
from bray_server import PageReply, PageRequest

_MODEL = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?(?:/(infer|ready|config))?")
_INDEX = "/v2/repository/index"
_EXTENSIONS = ["binary_tensor_data", "model_configuration", "model_repository(index)"]
_CODES: dict[type[BrayError], str] = {
    SpecError: "bad_request",
    NotFoundError: "not_found",
    CapacityError: "overloaded",
    DeadlineError: "deadline",
}


class InferencePages:
    """Answers clients of the protocol, such as `tritonclient[http]`.

    `ready` says nothing of a server that shuts down: it refuses all pages then.
    """

    def __init__(self, repository: Repository) -> None:
        self._repository = repository

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
                return await _infer(name, model, request)
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
            "/v2/health/live": {"live": True},
            "/v2/health/ready": {"ready": True},
        }
        path = request.path.rstrip("/")
        if path not in known:
            raise ServiceError("not_found", f"expected /step or one of /v2, got {path[:100]!r}")
        _expect(request, "GET")
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
            size = (model.model if isinstance(model, ServedModel) else model).config.max_batch_size
            return _json(model_config(name, size, model.signature))
        versions = [model.version for model in self._repository.models(name)]
        return _json(model_metadata(name, versions, model.signature))


async def _infer(name: str, model: Model | ServedModel, request: PageRequest) -> PageReply:
    asked = InferRequest(request.body, request.headers.get(HEADER), model.signature)
    body, json_bytes = asked.reply(name, await model.infer(*asked.inputs, batch=True))
    if json_bytes is None:
        return PageReply(body)
    size = b"%d" % json_bytes
    return PageReply(
        body,
        content_type=b"application/octet-stream",
        headers={b"Inference-Header-Content-Length": size},
    )


def _expect(request: PageRequest, method: str) -> None:
    if request.method != method and (request.method, method) != ("HEAD", "GET"):
        raise ServiceError("method_not_allowed", f"{request.path[:100]}: expected {method}")


def _json(content: Any, status: int = 200) -> PageReply:
    return PageReply(msgspec.json.encode(content), status)
