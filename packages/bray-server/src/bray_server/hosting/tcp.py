"""The binary protocol on a TCP port: many requests in flight on one connection."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from typing import TYPE_CHECKING

from bray_core.errors import CodecError, ServiceError
from bray_core.json_body import JsonBody
from bray_server.hosting.access_log import log_request
from bray_server.hosting.connection import ServerContext
from bray_server.hosting.group import METRICS_KEY
from bray_server.hosting.joining_connection import JoiningConnection
from bray_server.limits.byte_budget import UNCOUNTED_BYTES
from bray_server.sessions.pending_request import PendingRequest
from bray_server.wire.frames import (
    DELTA,
    HEADER,
    JSON,
    MAGIC,
    Frame,
    FrameParser,
    Kind,
    decoded_bytes,
    pack,
    pack_error,
)  # fmt: skip

if TYPE_CHECKING:
    from bray_server.wire.delta import DeltaDecoder

_START, _TICK, _END, _CALL, _REPLY = map(
    int, (Kind.START, Kind.TICK, Kind.END, Kind.CALL, Kind.REPLY)
)
_LARGE_BYTES = 16 * 1024
"""Size from which a body is written apart from its header, which is cheaper than copying."""
_MAX_AT_ONCE = 512
"""Number of frames of one connection that are started before others have a turn."""
_BYTES_AT_ONCE = 8 * 1024
"""Bytes of a decoded body that count as one frame more."""
_DECODED_AT_ONCE = 256 * 1024
"""Largest body that is decoded on the event loop; 500 bytes may become 16 MiB, in 20 ms."""
_HELLO_FIRST = "the first frame must be hello with a token"


class TcpConnection(JoiningConnection):
    """A connection over TCP. Sessions that are started on it are aborted when it is gone."""

    owns_sessions = True

    def __init__(self, host: ServerContext, *, is_worker: bool = False) -> None:
        super().__init__(host, is_worker=is_worker)
        limits = host.limits
        self._trusted = is_worker or not host.tokens.required
        most = limits.max_body_bytes if self._trusted else host.tokens.max_bytes
        self._parser = FrameParser(most, limits.max_session_bytes)
        self._later: deque[Frame] = deque()
        """Frames that were read and wait for their turn on the event loop."""
        self._is_decoding = False
        """Whether a thread decodes a body, for which the frames behind it wait."""
        self._reserved_bytes = 0
        """Bytes reserved in the budget for the frame that is not whole yet."""
        self._max_under_way = limits.max_requests_per_connection
        self._put = host.dispatcher.put
        self._decoders: dict[bytes, DeltaDecoder] = {}
        self._refusal: tuple[int, str, str] | None = None
        """The error frame to close with, once all that is under way is answered."""

    def data_received(self, data: bytes) -> None:
        """Start the requests in the data; after a bad frame the connection closes."""
        parser = self._parser
        self.last_received = now = time.monotonic()
        if self.is_lingering or not self._trusted:
            data = self._greet(data)
        frames = parser.feed(data)
        if self._reserved_bytes and frames and not self._is_behind:
            self._start_large(frames.pop(0), now)
        if self._is_behind or len(frames) > _MAX_AT_ONCE:
            self._later.extend(frames)
            frames = []
            self._go_on()
        for index, frame in enumerate(frames):
            kind, flags, request_id, session, body = frame
            if kind > _CALL or not self._trusted:
                self._control(frame)
            elif flags or self._decoders or len(body) > UNCOUNTED_BYTES:
                self._later.extend(frames[index:])
                self._go_on()
                break
            else:
                self.num_under_way += 1
                self._put((self, kind, session, body, request_id, now))
        if parser.error is not None and not self._is_behind:
            self._refuse_stream()
        if parser.pending_bytes:
            if self.partial_since is None:
                self.partial_since = now
            if parser.wanted_bytes > UNCOUNTED_BYTES:
                self._receive_large(parser.wanted_bytes)
        else:
            self.partial_since = None
        if self.num_under_way >= self._max_under_way:
            self.set_reading()

    def _greet(self, data: bytes) -> bytes:
        """Read one frame of a client without a token so far; a refused client is not read."""
        if self.is_lingering:
            self._drop(data)
            return b""
        frames = self._parser.feed(data, 1)
        for frame in frames:
            self._control(frame)
        if self._trusted:
            self._parser.max_body_bytes = self.limits.max_body_bytes
        return b""

    def _refuse_stream(self) -> None:
        error = self._parser.error
        assert error is not None
        code, message = error.code, str(error)
        if not self._trusted and code != "bad_frame":  # too long for a token
            code, message = "unauthorized", _HELLO_FIRST
        self._refuse(error.request_id, code, message)

    def _receive_large(self, num_bytes: int) -> None:
        """Make room for the frame that is not whole yet, before more of it is read."""
        if self._reserved_bytes or self.is_worker:
            return
        try:
            if not self._begin_receiving(num_bytes):
                self.set_reading()
            self._reserved_bytes = num_bytes
        except ServiceError as error:
            self._refuse(0, error.code, error.message)

    def _start_large(self, frame: Frame, now: float) -> None:
        """Start the frame for which room was made."""
        reserved, self._reserved_bytes = self._reserved_bytes, 0
        if self.waits_for_room:  # the rest of it came all the same
            self._stop_waiting()
            reserved = 0
        if frame[0] > _CALL:
            self._control(frame)
        elif frame[1] & DELTA:  # room was made for what came, not for what becomes of it
            self._later.append(frame)
        else:
            self._put_counted(frame, now, has_room=bool(reserved))
        self._give(reserved)

    def _go_on(self) -> None:
        """Start some of the frames that wait, and the rest after others had their turn."""
        now = time.monotonic()
        cost = 0
        while self._later and cost < _MAX_AT_ONCE and not (self.is_closing or self._is_decoding):
            frame = self._later.popleft()
            kind, flags, request_id, session, body = frame
            cost += 1
            if kind > _CALL or not self._trusted:
                self._control(frame)
            elif flags & DELTA and self._takes_long(frame):
                self._is_decoding = True
                self.host.spawn(self._decode_in_thread(frame, self._decoders[session]))
            elif flags or self._decoders or len(body) > UNCOUNTED_BYTES:
                cost += self._put_counted(frame, now) // _BYTES_AT_ONCE
            else:
                self.num_under_way += 1
                self._put((self, kind, session, body, request_id, now))
        if self.is_closing:
            self._later.clear()
        elif self._is_decoding:
            pass  # it comes back here
        elif self._later:
            asyncio.get_running_loop().call_soon(self._go_on)
        elif self._parser.error is not None:
            self._refuse_stream()
        self.set_reading()

    def _takes_long(self, frame: Frame) -> bool:
        """Whether a body is large once it is decoded, and may be."""
        kind, flags, _, session, body = frame
        size = decoded_bytes(kind, flags, body)
        is_large = _DECODED_AT_ONCE < size <= self.limits.max_body_bytes
        return is_large and session in self._decoders and self._budget.fits(size)

    async def _decode_in_thread(self, frame: Frame, decoder: DeltaDecoder) -> None:
        """Decode a body beside the event loop, start its request, and then those behind it."""
        kind, flags, request_id, session, body = frame
        size, now = decoded_bytes(kind, flags, body), time.monotonic()
        self._count(size)
        error: CodecError | None = None
        try:
            body = await asyncio.to_thread(decoder.decode, body)
        except CodecError as refused:
            error = refused
        except BaseException:  # no memory, or the server stops: nothing behind it can be answered
            self.abort()
            raise
        self._is_decoding = False
        self._give(size)
        if self.is_closing:
            return
        if error is not None:
            self._answer_error(request_id, session, "bad_delta", str(error))
        else:
            self._put_counted((kind, flags & ~DELTA, request_id, session, body), now)
        self._go_on()

    def _control(self, frame: Frame) -> None:
        """Answer a frame that is no request."""
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
            self._refuse(request_id, "unauthorized", _HELLO_FIRST)
        elif kind == Kind.PING:
            if self.is_worker and session == METRICS_KEY:
                body = json.dumps(self.host.snapshot()).encode()
            self.write(pack(Kind.PONG, request_id, b"", body))
        else:
            self._refuse(request_id, "bad_frame", f"kind {kind} is for servers to send")

    def reply(self, item: PendingRequest, reply: bytes | ServiceError) -> None:
        """Send the answer to a request that was put into the dispatcher."""
        _, kind, session, body, tag, received_s = item
        self.num_under_way -= 1
        if self.is_paused:
            self.set_reading()
        flags, request_id = divmod(tag, 1 << 32)  # the flags of the reply lie above the id
        if len(body) > UNCOUNTED_BYTES:
            self._give(len(body))
        if not isinstance(reply, ServiceError) and len(reply) > UNCOUNTED_BYTES:
            reply = self._sendable(reply)
        if isinstance(reply, ServiceError):
            if flags or reply.code == "unknown_session":
                self._forget(session)
            self.write(pack_error(request_id, session, reply.code, reply.message))
        else:
            if type(reply) is JsonBody:
                flags |= JSON
            head = HEADER.pack(MAGIC, _REPLY, flags, len(session), request_id, len(reply))
            if len(reply) < _LARGE_BYTES:
                self.write_reply(head + session + reply)
            else:
                self.write_parts(head + session, reply)
                if self.is_blocked:
                    self._count_unsent()
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

    def _put_counted(self, frame: Frame, now: float, has_room: bool = False) -> int:
        """Start a request that is large or has flags; return the size of its body."""
        kind, flags, request_id, session, body = frame
        try:
            if not has_room:
                self._check_room(decoded_bytes(kind, flags, body))
            body, granted = self._decode(kind, flags, session, body)
        except CodecError as error:
            self._answer_error(request_id, session, "bad_delta", str(error))
            return 0
        except ServiceError as error:
            self._answer_error(request_id, session, error.code, error.message)
            return 0
        if flags & JSON:
            body = JsonBody(body)
        if len(body) > UNCOUNTED_BYTES:
            self._count(len(body))
        self.num_under_way += 1
        self._put((self, kind, session, body, granted << 32 | request_id, now))
        return len(body)

    def _check_room(self, size: int) -> None:
        """Check that there is room for a decoded body. Raises ServiceError: `overloaded`."""
        if size > UNCOUNTED_BYTES and not self.is_worker and not self._budget.fits(size):
            raise self._budget.overloaded(size)

    def _answer_error(self, request_id: int, session: bytes, code: str, message: str) -> None:
        self.host.sessions.metrics.count_error(code)
        self.write(pack_error(request_id, session, code, message))

    def _decode(self, kind: int, flags: int, session: bytes, body: bytes) -> tuple[bytes, int]:
        """Return the body as the service sees it, and the flags of the reply."""
        if kind == _START and flags & DELTA:
            if session not in self._decoders and self.host.take_delta():
                from bray_server.wire.delta import DeltaDecoder  # brings zstd: for those who ask

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
        """Forget the session's decoder, so that another session may have one."""
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
            self.host.sessions.metrics.count_error(code)
            self.write(pack_error(request_id, b"", code, message))
            self.linger()
            self.ended()  # its sessions go now, not when the client has read why

    def refuse_slow(self) -> None:
        """Refuse a request that takes too long to arrive."""
        limit = self.limits.receive_timeout_s
        self._refuse(0, "deadline", f"no whole request within {limit:g} s")

    @property
    def is_too_busy(self) -> bool:
        """Whether to read no more for now."""
        return (
            self.num_under_way >= self._max_under_way
            or self._refusal is not None
            or self.waits_for_room
            or self._is_behind
        )

    @property
    def _is_behind(self) -> bool:
        """Whether frames that come now wait for those before them."""
        return bool(self._later) or self._is_decoding

    @property
    def is_idle(self) -> bool:
        """Always False: TCP keep-alive finds dead connections, and others may rest."""
        return False

    def ended(self) -> None:
        """Abort the client's sessions."""
        self._later.clear()
        for session in list(self._decoders):
            self._forget(session)
        if not self.is_worker:
            self.host.spawn(self.host.sessions.disconnect(self))
