"""Settings of the endpoint of a language model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias

from bray_core.settings.ranges import PositiveInt, Range, check_fields

Seconds: TypeAlias = Annotated[float, Range(above=0)]


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatConfig:
    """Settings of a `ChatEndpoint`.

    Raises:
        ConfigError: A value is out of range; names the field.
    """

    model_name: str | None = None
    """Name that clients ask for; None: the model's own."""
    max_sessions: PositiveInt = 10_000
    """Number of sessions that are open at a time. Where one more begins, the one that was at rest
    for longest is closed if it rested for `min_rest_s`; else the new one is refused."""
    min_rest_s: Seconds = 30.0
    """Time at rest after which a session may be closed because room is needed."""
    session_idle_s: Seconds = 600.0
    """Time without a request after which a session is closed. Too short, episodes of slow programs
    are cut; too long, sessions that nobody ends hold memory."""
    session_s: Seconds = 7200.0
    """Time after which a session is closed although requests still come."""
    max_session_tokens: PositiveInt = 262_144
    """Tokens of all segments of one session; a turn beyond is refused. About 24 bytes each."""
    max_held_tokens: PositiveInt = 16_000_000
    """Tokens of all open sessions together; beyond it room is made as for `max_sessions`."""
    max_choices: PositiveInt = 64
    """Largest number of answers to one request: `n` times the number of prompts."""
    max_body_bytes: PositiveInt = 4 * 1024 * 1024
    """Largest body of a request; the server's own limit holds too."""
    retry_grace_s: Seconds = 3.0
    """Time for which a whole answer in a session is worked on after its client has gone, so that a
    request that is sent again finds it, and for which a stream that was not begun is waited for.
    Streamed answers, and those outside of sessions, end at once."""

    def __post_init__(self) -> None:
        check_fields(self)
