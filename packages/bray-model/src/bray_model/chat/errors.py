"""Errors of the endpoint, in the shape that every client of OpenAI's API reads."""

from __future__ import annotations

import msgspec

from bray_core.errors import (
    BrayError,
    CapacityError,
    ClosedError,
    DeadlineError,
    ServiceError,
    SpecError,
)
from bray_model.text.requests import MissingChatTemplateError, PromptTooLongError


class ApiError(ServiceError):
    """An error as `{"error": {"message", "type", "param", "code"}}` says it.

    Args:
        code: Short name of the error, such as `context_length_exceeded`.
        message: What was expected, what came, and what to do.
        status: Status of HTTP.
        param: Field of the request that is at fault; None: no single one is.
    """

    def __init__(
        self, code: str, message: str, *, status: int = 400, param: str | None = None
    ) -> None:
        super().__init__(code, message)
        self.status = status
        self.param = param

    @property
    def body(self) -> bytes:
        """The error as JSON."""
        return error_body(self, self.status, self.param)


def error_body(error: ServiceError, status: int, param: str | None = None) -> bytes:
    """Return an error as JSON.

    Args:
        error: The error.
        status: Status of HTTP, which decides the type that is named.
        param: Field of the request that is at fault.
    """
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    content = {"message": error.message, "type": kind, "param": param, "code": error.code}
    return msgspec.json.encode({"error": content})


_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def invalid(param: str | None, message: str) -> ApiError:
    """Return the error for a value that a request may not have."""
    text = message if param is None or message.startswith(param) else f"{param}: {message}"
    return ApiError("invalid_value", text, param=param)


def api_error(error: BrayError, prompt: str = "messages") -> ServiceError:
    """Return an error of the model as a client is told it.

    Args:
        error: The error.
        prompt: Field of the request that the prompt is made of.
    """
    if isinstance(error, ServiceError):
        return error
    text = str(error)
    is_prompt = text.startswith("prompt_ids: ")
    text = text.replace("prompt_ids", prompt, 1) if is_prompt else text
    if isinstance(error, PromptTooLongError):
        return ApiError("context_length_exceeded", text, param=prompt)
    if isinstance(error, MissingChatTemplateError):
        return ApiError("missing_chat_template", text)
    if isinstance(error, CapacityError):
        return ApiError("overloaded", text, status=429)
    if isinstance(error, ClosedError):
        return ApiError("shutting_down", text, status=503)
    if isinstance(error, DeadlineError):
        return ApiError("deadline", text, status=408)
    if isinstance(error, SpecError):
        return invalid(prompt if is_prompt else None, text)
    return ServiceError("service_error", f"{type(error).__name__}: {text}")
