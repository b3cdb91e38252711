"""Answering over HTTP/1.1: `POST /step`, and pages for health and metrics."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time

from bray_core.errors import ServiceError
from bray_core.json_body import JsonBody
from bray_server.hosting.access_log import log_request
from bray_server.hosting.connection import ServerContext
from bray_server.hosting.http_reader import CONTINUE, MAX_PIPELINED, SERVER_PAGES, HttpReader
from bray_server.hosting.http_replies import BYTES, bytes_head, error_headers, reply_head
from bray_server.hosting.http_request import HttpRequest
from bray_server.hosting.repeated_head import RepeatedHead
from bray_server.hosting.streamed_reply import StreamedReply
from bray_server.limits.byte_budget import UNCOUNTED_BYTES
from bray_server.sessions.direct_ticks import BegunTick
from bray_server.sessions.error_codes import STATUS, check_method
from bray_server.sessions.page_streams import PageStream
from bray_server.sessions.pages import PAGE, PageReply, PageRequest
from bray_server.sessions.pending_request import PendingRequest
from bray_server.wire.frames import Kind

_KINDS = {
    b"start": int(Kind.START),
    b"tick": int(Kind.TICK),
    b"end": int(Kind.END),
    b"stop": int(Kind.END),
}
_TICK, _CALL = int(Kind.TICK), int(Kind.CALL)
_JSON = b"application/json"
_LARGE_BYTES = 16 * 1024
_PROBE_AFTER_S = (0.05, 0.1)
"""Times after which a client that waits for a page and sends no more is asked whether it is still
there. Of one that is gone the first reply is refused, which the second one finds out."""


class HttpConnection(HttpReader):
    """One HTTP client; its requests are answered one after the other, in order.

    Sessions over HTTP are bound to no connection: the idle timeout ends those that were left.

    Args:
        host: The server.
    """

    def __init__(self, host: ServerContext) -> None:
        super().__init__(host)
        self._answer_at_once = host.dispatcher.direct.answer
        self._streamed: StreamedReply | None = None

    def check_time(self, now: float, late_s: float) -> None:
        """End the connection if it stalls, or if the client only seemed to be half closed.

        A client that closed its side and one that is gone look alike until something is sent to
        them: an interim reply, which every client of HTTP/1.1 ignores.
        """
        super().check_time(now, late_s)
        self._probe()

    def eof_received(self) -> bool:
        """Answer the whole requests, then close: see `HttpReader.eof_received`."""
        stays_open = super().eof_received()
        if stays_open:
            for delay_s in _PROBE_AFTER_S:
                asyncio.get_running_loop().call_later(delay_s, self._probe_of_page)
        return stays_open

    def server_stopped(self) -> None:
        """Say so to a client that still waits for an answer, and close."""
        if self._answering is not None and not self.is_closing:
            self._answering.keep_alive = False
            error = ServiceError("draining", "the server stopped before it had the answer")
            if self._streamed is not None:
                self._streamed.fail(error)
            else:
                self._reply_error(self._answering, error)
        self.close()

    def _probe_of_page(self) -> None:
        """Probe sooner where a page is made: it may take long, and nobody may wait for it."""
        if self._answering is not None and self._answering.is_page:
            self._probe()

    def _probe(self) -> None:
        """Send an interim reply to a client that sends no more, if one is allowed now."""
        waits = self._answering is not None and not self._is_streaming
        if self._is_half_closed and self._takes_interim and waits and not self.is_lost:
            self.write(CONTINUE)

    def _next(self) -> None:
        """Answer the oldest request, unless one is being answered."""
        num_left = MAX_PIPELINED
        while self._queue and self._answering is None and not self.is_closing:
            if not num_left:  # others have a turn
                asyncio.get_running_loop().call_soon(self._next)
                return
            num_left -= 1
            request = self._answering = self._queue.popleft()
            path = request.url if request.url == b"/step" else request.path
            try:
                if request.error is not None:
                    raise request.error
                if path == b"/step":
                    self._put(request)
                elif path in SERVER_PAGES or self.host.pages is None:
                    self._page(request, path)
                else:
                    self._put_page(request, path)
            except ServiceError as error:
                self.host.sessions.metrics.count_error(error.code)
                self._reply_error(request, error)
        if self.is_paused:
            self.set_reading()

    def _put(self, request: HttpRequest) -> None:
        """Hand a step to the dispatcher. Raises ServiceError: it is refused."""
        kind, session = self._step(request)
        self.num_under_way = 1
        body = request.take_body()
        if _is_in_json(request):
            body = JsonBody(body)
        self.host.dispatcher.put((self, kind, session, body, request, request.received_s))

    def _step(self, request: HttpRequest) -> tuple[int, bytes]:
        """Return the kind and the session of a step. Raises ServiceError: it is refused."""
        if request.method != b"POST":
            check_method("/step", _text(request.method), "POST")
        headers = request.headers
        given = headers.get(b"step_kind")
        session = b""
        if given is None:
            kind = _CALL
        else:
            kind = _KINDS.get(given) or _KINDS.get(given.strip().lower()) or 0
            if not kind:
                wanted = "step_kind: expected start, tick, end or stop"
                raise ServiceError("bad_request", f"{wanted}, got {_text(given)!r}")
            session = headers.get(b"session", b"")
            if not session:
                missing = f"step_kind {_text(given)} needs the header 'session'"
                raise ServiceError("bad_session", missing)
        return kind, session

    def _answer_repeated(self, head: RepeatedHead, body: bytes) -> bool:
        """Answer a request while no other is under way, without a task if possible."""
        if not head.is_known:
            self._look_at(head)
        transport = self._transport
        if head.kind is None or self.is_paused or transport is None or transport.is_closing():
            return False
        reply = None
        if head.is_direct and not self.is_blocked:
            reply = self._answer_at_once(head.kind, head.session, body, self.last_received)
            if type(reply) is bytes and (size := len(reply)) < _LARGE_BYTES:
                transport.write(bytes_head(size, self.last_received) + reply)
                return True
        self._take(head, head.kind, body, reply)
        return True

    def _take(
        self,
        head: RepeatedHead,
        kind: int,
        body: bytes,
        reply: bytes | ServiceError | BegunTick | None,
    ) -> None:
        """Answer a request as any other, from where `_answer_repeated` has brought it."""
        request = self._answering = head.request  # shared: a reply changes nothing of it
        given: bytes | PageRequest = body
        if head.page is not None:
            given = head.page.again(body)
        elif head.is_json:
            given = JsonBody(body)
        item = (self, kind, head.session, given, request, self.last_received)
        self.num_under_way = 1
        if reply is None:
            self.host.dispatcher.put(item)
        elif isinstance(reply, BegunTick):
            reply.go_on(item)
        else:
            self.reply(item, reply)

    def _look_at(self, head: RepeatedHead) -> None:
        """Find out what requests with a head ask for."""
        head.is_known = True
        request = head.request
        if request.url == b"/step":
            with contextlib.suppress(ServiceError):  # each of them is answered by the error
                head.kind, head.session = self._step(request)
            head.is_json = _is_in_json(request)
            has_id = b"x-request-id" in request.headers
            is_plain = not (head.is_json or has_id or request.speaks_1_0 or self.host.access_log)
            request.is_plain = is_plain and head.kind is not None
            is_call = head.kind == _CALL and not self.host.sessions.answers_calls_together
            head.is_direct = is_plain and (head.kind == _TICK or is_call)
        elif self._is_page(request) and self.host.check_page is None:
            head.kind = PAGE
            request.is_page = True
            head.page = self._page_request(request, request.path, request.method, b"")

    def _put_page(self, request: HttpRequest, path: bytes) -> None:
        """Hand a page of the service to the dispatcher. Raises ServiceError: it is refused."""
        request.is_page = True
        page = self._page_request(request, path, request.method, request.take_body())
        self.num_under_way = 1
        self.host.dispatcher.put((self, PAGE, b"", page, request, request.received_s))

    def _page(self, request: HttpRequest, path: bytes) -> None:
        if path not in SERVER_PAGES:
            raise ServiceError("not_found", "expected /step, /health, /ready or /metrics")
        check_method(_text(path), _text(request.method), "GET")
        if path == b"/metrics":
            self.host.spawn(self._metrics(request))
            return
        if path == b"/ready" and self.host.sessions.draining:
            raise ServiceError("draining", "the server is shutting down")
        self._reply(request, 200, b"text/plain", path[1:] + b"\n")

    async def _metrics(self, request: HttpRequest) -> None:
        text = await self.host.metrics()
        self._reply(request, 200, b"text/plain; version=0.0.4", text.encode())
        self._next()

    def reply(
        self, item: PendingRequest, reply: bytes | PageReply | PageStream | ServiceError
    ) -> None:
        """Send the answer to a request that was put into the dispatcher."""
        request: HttpRequest = item[4]
        self.num_under_way = 0
        if request.is_plain and type(reply) is bytes and (size := len(reply)) < _LARGE_BYTES:
            self.write(bytes_head(size, time.monotonic()) + reply)
            self._finish(request)
            if self._queue:
                self._next()
            return
        if request.counted_bytes:
            self._give(request.counted_bytes)
            request.counted_bytes = 0
        if not isinstance(reply, ServiceError) and len(reply) > UNCOUNTED_BYTES:
            reply = self._sendable(reply)
        if isinstance(reply, PageStream):
            self._begin_stream(item, request, reply)
            return
        request_id = request.id if self.host.access_log else b""
        if isinstance(reply, ServiceError):
            request_id = self._reply_error(request, reply)
        elif isinstance(reply, PageReply):
            self._reply_page(request, reply)
        else:
            content_type = _JSON if type(reply) is JsonBody else BYTES
            self._reply(request, 200, content_type, reply)
        self._log(item, request_id, reply)
        if self._queue:
            self._next()

    def _log(
        self,
        item: PendingRequest,
        request_id: bytes,
        reply: bytes | PageReply | PageStream | ServiceError,
    ) -> None:
        if not self.host.access_log:
            return
        log_request(
            peer=self.peer,
            request_id=request_id.decode(),
            kind=item[1],
            session=item[2],
            path=item[3].path if isinstance(item[3], PageRequest) else "",
            received_bytes=len(item[3]),
            reply=reply,
            elapsed_s=time.monotonic() - item[5],
        )

    # Pages that are sent in pieces.

    @property
    def _is_streaming(self) -> bool:
        return self._streamed is not None

    def resume_writing(self) -> None:
        """Answer and read requests again: the client reads its replies."""
        super().resume_writing()
        if self._streamed is not None:
            self._streamed.resume()

    def _begin_stream(self, item: PendingRequest, request: HttpRequest, stream: PageStream) -> None:
        """Send the head of a page in pieces, and the pieces in a task of their own."""
        if self.is_lost or self.is_closing:
            return  # nothing was begun: see `PageStream`
        extra = b"".join(b"%b: %b\r\n" % header for header in stream.headers.items())
        # The second for nginx, which else holds the pieces back until it has all.
        extra += b"Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n"
        if b"x-request-id" in request.headers:
            extra += b"X-Request-Id: %b\r\n" % request.id
        if request.speaks_1_0:
            request.keep_alive = False
        else:
            extra += b"Transfer-Encoding: chunked\r\n"
        if not request.keep_alive:
            extra += b"Connection: close\r\n"
        self.write(b"%b%b\r\n" % (reply_head(stream.status, stream.content_type), extra))
        self._streamed = StreamedReply(self, stream, is_chunked=not request.speaks_1_0)
        self.host.sessions.begin_stream()
        task = asyncio.get_running_loop().create_task(self._stream(item, request, self._streamed))
        self.waiting.add(task)
        task.add_done_callback(self.waiting.discard)

    async def _stream(
        self, item: PendingRequest, request: HttpRequest, streamed: StreamedReply
    ) -> None:
        outcome: PageStream | ServiceError = streamed.stream
        is_whole = True
        try:
            if request.method != b"HEAD":
                await streamed.send()
        except Exception as error:  # noqa: BLE001  the request's edge: it becomes its last words
            outcome = self.host.sessions.failed(error)
            is_whole = streamed.fail(outcome)
        finally:
            self._streamed = None
            self.host.sessions.end_stream(len(streamed.stream))
        self._log(item, request.id, outcome)
        if not is_whole:
            self.abort()
            return
        self._finish(request)
        self._next()

    def _reply_page(self, request: HttpRequest, reply: PageReply, extra: bytes = b"") -> None:
        for name, value in reply.headers.items():
            extra += b"%b: %b\r\n" % (name, value)
        self._reply(request, reply.status, reply.content_type, reply.body, extra)

    def _reply_error(self, request: HttpRequest, error: ServiceError) -> bytes:
        """Answer with an error; return the id by which the client may ask about it."""
        body = json.dumps({"error": {"code": error.code, "message": error.message}}).encode()
        status = STATUS.get(error.code, 500)
        extra = error_headers(error)
        request_id = request.id
        if b"x-request-id" not in request.headers:
            request_id = secrets.token_hex(8).encode()
            extra += b"X-Request-Id: %b\r\n" % request_id
        if self._is_page(request):
            assert self.host.pages is not None
            self._reply_page(request, self.host.pages.error(error, status), extra)
        else:
            self._reply(request, status, _JSON, body, extra)
        return request_id

    def _is_page(self, request: HttpRequest) -> bool:
        """Whether a request is for a page of the service, even if it could not be read whole."""
        path = request.path
        own = not path or path == b"/step" or path in SERVER_PAGES
        return request.is_page or (self.host.pages is not None and not own)

    def _reply(
        self,
        request: HttpRequest,
        status: int,
        content_type: bytes,
        body: bytes,
        extra: bytes = b"",
    ) -> None:
        size = len(body)
        if b"x-request-id" in request.headers:
            extra += b"X-Request-Id: %b\r\n" % request.id
        if not request.keep_alive:
            extra += b"Connection: close\r\n"
        elif request.speaks_1_0:
            extra += b"Connection: keep-alive\r\n"
        if request.method == b"HEAD":
            body = b""
        head = b"%bContent-Length: %d\r\n%b\r\n" % (reply_head(status, content_type), size, extra)
        if len(body) < _LARGE_BYTES:
            self.write(head + body)
        else:
            self.write_parts(head, body)
        if request.counted_bytes:
            self._give(request.counted_bytes)
            request.counted_bytes = 0
        self._finish(request)

    def _finish(self, request: HttpRequest) -> None:
        """Go on to the next request, or close where none can follow."""
        self._answering = None
        if self._error is not None and not self._queue:
            self.linger()
        elif not request.keep_alive or (self._is_half_closed and self._is_done):
            self.close()


def _is_in_json(request: HttpRequest) -> bool:
    content_type = request.headers.get(b"content-type", b"")
    return content_type.partition(b";")[0].strip().lower() == _JSON


def _text(value: bytes) -> str:
    return value[:100].decode(errors="replace")
