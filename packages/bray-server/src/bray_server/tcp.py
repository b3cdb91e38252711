"""The binary protocol on a TCP port: many requests in flight on one connection."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from bray_core.errors import CodecError, ServiceError
from bray_server.access_log import log_request
from bray_server.connection import Connection, Host
from bray_server.dispatcher import Item
from bray_server.frames import DELTA, HEADER, MAGIC, Frame, FrameParser, Kind, pack, pack_error
from bray_server.group import FIGURES

if TYPE_CHECKING:
    from bray_server.delta import DeltaDecoder

_START, _TICK, _END, _CALL, _REPLY = map(
    int, (Kind.START, Kind.TICK, Kind.END, Kind.CALL, Kind.REPLY)
)
_LARGE_BYTES = 16 * 1024
"""A body of this size is cheaper to write apart from its header than to copy behind it."""


class TcpConnection(Connection):
    """One client. Sessions that it starts are bound to it: they are aborted when it is gone."""

    owns_sessions = True

    def __init__(self, host: Host, *, is_worker: bool = False) -> None:
        super().__init__(host, is_worker=is_worker)
        limits = host.limits
        self._parser = FrameParser(limits.max_body_bytes, limits.max_session_bytes)
        self._trusted = is_worker or not host.tokens.required
        self._max_under_way = limits.max_requests_per_connection
        self._put = host.dispatcher.put
        self._decoders: dict[bytes, DeltaDecoder] = {}
        self._refusal: tuple[int, str, str] | None = None
        """The error frame to close with, once all that is under way is answered."""

    def data_received(self, data: bytes) -> None:
        """Start what the frames ask for; a bad one is answered, then the connection closes."""
        parser = self._parser
        now = time.monotonic()
        for frame in parser.feed(data):
            kind, flags, request_id, session, body = frame
            if kind > _CALL or not self._trusted:
                self._control(frame)
            elif flags or self._decoders:
                self._put_decoded(frame, now)
            else:
                self.num_under_way += 1
                self._put((self, kind, session, body, request_id, now))
        if parser.error is not None:
            self._refuse(parser.error.request_id, parser.error.code, str(parser.error))
        self.last_received = now
        if parser.pending_bytes:
            if self.partial_since is None:
                self.partial_since = now
        else:
            self.partial_since = None
        if self.num_under_way >= self._max_under_way:
            self.set_reading()

    def _control(self, frame: Frame) -> None:
        """Answer what is no request."""
        kind, _, request_id, session, body = frame
        if self.is_closing:
            return
        if kind == Kind.HELLO:
            if not self.host.tokens.accept(body):
                self._refuse(request_id, "unauthorized", "unknown token")
                return
            self._trusted = True
            self.write(pack(Kind.REPLY, request_id, b"", b""))
        elif not self._trusted:
            message = "the first frame must be hello with a token"
            self._refuse(request_id, "unauthorized", message)
        elif kind == Kind.PING:
            if self.is_worker and session == FIGURES:
                body = json.dumps(self.host.snapshot()).encode()
            self.write(pack(Kind.PONG, request_id, b"", body))
        else:
            self._refuse(request_id, "bad_frame", f"kind {kind} is for servers to send")

    def reply(self, item: Item, reply: bytes | ServiceError) -> None:
        """Send the answer to a request that was put into the dispatcher."""
        _, kind, session, body, tag, received_s = item
        self.num_under_way -= 1
        if self.is_paused:
            self.set_reading()
        flags, request_id = divmod(tag, 1 << 32)  # the flags of the reply lie above the id
        if isinstance(reply, ServiceError):
            if flags or reply.code == "unknown_session":
                self._forget(session)
            self.write(pack_error(request_id, session, reply.code, reply.message))
        else:
            head = HEADER.pack(MAGIC, _REPLY, flags, len(session), request_id, len(reply))
            if len(reply) < _LARGE_BYTES:
                self.write(head + session + reply)
            else:
                self.write_parts(head + session, reply)
        if self._refusal is not None and not self.num_under_way:
            self._refuse(*self._refusal)
        if self.host.access_log:
            log_request(
                peer=self.peer,
                request_id=str(request_id),
                kind=kind,
                session=session,
                path="",
                received_bytes=len(body),
                reply=reply,
                elapsed_s=time.monotonic() - received_s,
            )

    def _put_decoded(self, frame: Frame, now: float) -> None:
        kind, flags, request_id, session, body = frame
        try:
            body, granted = self._decode(kind, flags, session, body)
        except CodecError as error:
            self.host.sessions.figures.count_error("bad_delta")
            self.write(pack_error(request_id, session, "bad_delta", str(error)))
            return
        self.num_under_way += 1
        self._put((self, kind, session, body, granted << 32 | request_id, now))

    def _decode(self, kind: int, flags: int, session: bytes, body: bytes) -> tuple[bytes, int]:
        """Return the body as the service sees it, and the flags of the reply."""
        if kind == _START and flags & DELTA:
            if session not in self._decoders and self.host.take_delta():
                from bray_server.delta import DeltaDecoder  # brings zstd: for those who ask

                self._decoders[session] = DeltaDecoder(self.limits.max_body_bytes)
                return body, DELTA
        elif kind == _END:
            self._forget(session)
        elif flags & DELTA:
            decoder = self._decoders.get(session)
            if decoder is None:
                raise CodecError("delta: not granted to this session on this connection")
            return decoder.decode(body), 0
        return body, 0

    def session_ended(self, session: bytes) -> None:
        """Give its share of delta encoding to others."""
        self._forget(session)

    def _forget(self, session: bytes) -> None:
        if self._decoders.pop(session, None) is not None:
            self.host.give_back_delta()

    def _refuse(self, request_id: int, code: str, message: str) -> None:
        """Answer with an error and close, after the replies to what came before."""
        if self.num_under_way and not self.is_closing:
            self._refusal = self._refusal or (request_id, code, message)
            self.set_reading()
        elif not self.is_closing:
            self.host.sessions.figures.count_error(code)
            self.write(pack_error(request_id, b"", code, message))
            self.close()

    def refuse_slow(self) -> None:
        """A request has been under way to us for too long."""
        limit = self.limits.receive_timeout_s
        self._refuse(0, "deadline", f"no whole request within {limit:g} s")

    @property
    def is_too_busy(self) -> bool:
        """Whether to read no more for now."""
        return self.num_under_way >= self._max_under_way or self._refusal is not None

    @property
    def is_idle(self) -> bool:
        """A TCP connection may rest as long as it likes: TCP keep-alive finds dead ones."""
        return False

    def ended(self) -> None:
        """Abort the client's sessions."""
        for session in list(self._decoders):
            self._forget(session)
        if not self.is_worker:
            self.host.spawn(self.host.sessions.disconnect(self))
