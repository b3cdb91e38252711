"""Codes of the errors that a server answers, each with its HTTP status."""

from __future__ import annotations

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
