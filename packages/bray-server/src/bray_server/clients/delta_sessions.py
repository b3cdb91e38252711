"""Delta encoding at the client: which sessions have it, and what has to be sent again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bray_core.errors import ServiceError
from bray_server.wire.frames import DELTA, Frame, Kind
from bray_server.wire.requests import Reply, Request

if TYPE_CHECKING:
    from bray_server.wire.delta import DeltaEncoder

_MAX_BODY_BYTES = 1 << 30
_GONE = ("unknown_session", "worker_lost")


class DeltaSessions:
    """The encoders of one connection's sessions.

    Args:
        wanted: Whether to ask for delta encoding at all.
    """

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted
        self._encoders: dict[str, DeltaEncoder] = {}

    def encode(self, kind: str, session: str, body: bytes) -> tuple[bytes, int]:
        """Return a request's body as it is sent, and its frame's flags."""
        if not self._wanted:
            return body, 0
        if kind == "start":
            return body, DELTA
        encoder = self._encoders.get(session)
        if encoder is None:
            return body, 0
        if kind == "end":
            del self._encoders[session]
            return body, 0
        return encoder.encode(body), DELTA

    def note_reply(self, frame: Frame) -> None:
        """Encode a session's ticks from now on, if the reply grants delta encoding."""
        kind, flags, _, session, _ = frame
        if flags & DELTA and kind == Kind.REPLY:
            from bray_server.wire.delta import DeltaEncoder

            self._encoders[session.decode()] = DeltaEncoder(_MAX_BODY_BYTES)

    def to_repeat(self, requests: Sequence[Request], replies: Sequence[Reply]) -> list[int]:
        """Return the indices of ticks that the server could not decode; they are sent
        again as key frames."""
        again = []
        for index, (request, reply) in enumerate(zip(requests, replies, strict=True)):
            if isinstance(reply, ServiceError) and request.session in self._encoders:
                if reply.code == "bad_delta":
                    self._encoders[request.session].reset()
                    again.append(index)
                elif reply.code in _GONE:
                    del self._encoders[request.session]
        return again

    def forget_all(self) -> None:
        """Forget all sessions, as the connection is a new one."""
        self._encoders.clear()
