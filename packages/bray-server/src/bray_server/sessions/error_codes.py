"""Codes of the errors that a server answers, each with its HTTP status."""

from __future__ import annotations

from bray_core.errors import ServiceError

STATUS = {
    "bad_request": 400,
    "bad_frame": 400,
    "bad_session": 400,
    "bad_delta": 400,
    "bad_spaces": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "unknown_session": 404,
    "not_found": 404,
    "method_not_allowed": 405,
    "deadline": 408,
    "session_exists": 409,
    "busy": 409,
    "worker_lost": 410,
    "body_too_large": 413,
    "unsupported_media_type": 415,
    "too_many_sessions": 429,
    "overloaded": 429,
    "headers_too_large": 431,
    "service_error": 500,
    "draining": 503,
    "not_ready": 503,
}
"""HTTP status of each error code."""


class MethodNotAllowedError(ServiceError):
    """A page was asked for by another method of HTTP than it has.

    Args:
        message: What was expected, and what came.
        allowed: The methods that it has, as the header `Allow` names them.
    """

    def __init__(self, message: str, allowed: str) -> None:
        super().__init__("method_not_allowed", message)
        self.allowed = allowed

    def __reduce__(self) -> tuple[type[MethodNotAllowedError], tuple[str, str]]:
        return type(self), (self.message, self.allowed)


def check_method(path: str, method: str, *expected: str) -> None:
    """Refuse a request by another method than the expected ones; `GET` stands for `HEAD`, too.

    Args:
        path: Path of the page, percent-encoded.
        method: Method of the request.
        *expected: Methods that the page has.

    Raises:
        MethodNotAllowedError: It is none of them.
    """
    known = expected + ("HEAD",) * ("GET" in expected)
    if method not in known:
        text = f"{path[:100]}: expected {' or '.join(expected)}, got {method[:20]}"
        raise MethodNotAllowedError(text, ", ".join(known))
