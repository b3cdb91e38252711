"""What one server grants."""

from __future__ import annotations

from dataclasses import dataclass, fields

from bray_core.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Bounds of one server; beyond them a client gets an error, never silence."""

    max_body_bytes: int = 16 * 1024 * 1024
    """Of a request's body."""
    max_session_bytes: int = 256
    """Of a session id, in UTF-8."""
    max_sessions: int = 10_000
    """Sessions open at a time."""
    idle_timeout_s: float = 60.0
    """A session without a request for so long is ended."""
    tick_timeout_s: float = 60.0
    """How long a service may take for one request."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) <= 0:
                raise ConfigError(
                    f"{field.name}: expected more than 0, got {getattr(self, field.name)}"
                )
