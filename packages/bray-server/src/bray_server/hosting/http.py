"""The protocol over HTTP/1.1: `POST /step`, and pages for health and metrics."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import deque
from email.utils import formatdate
from http import HTTPStatus

import httptools

from bray_core.errors import ServiceError
from bray_server.hosting.access_log import log_request
from bray_server.hosting.connection import Connection, Host
from bray_server.hosting.pages import HEADERS, PAGE, PageReply, PageRequest
from bray_server.limits.byte_budget import UNCOUNTED_BYTES
from bray_server.sessions.dispatcher import Item
from bray_server.sessions.sessions import STATUS
from bray_server.wire.frames import Kind
from bray_server.wire.pieces import Pieces

_KINDS = {
    b"start": int(Kind.START),
    b"tick": int(Kind.TICK),
    b"end": int(Kind.END),
    b"stop": int(Kind.END),
}
_CALL = int(Kind.CALL)
_ONCE = HEADERS | {b"session", b"step_kind", b"authorization"}
_WANTED = _ONCE | {b"x-request-id", b"expect"}
_PAGES = (b"/health", b"/ready", b"/metrics")
_MAX_PIPELINED = 64
_MAX_REQUEST_ID_BYTES = 128
_LARGE_BYTES = 16 * 1024
_SLICE_BYTES = 68 * 1024
"""Parsed at once: a body of 64 KiB with its headers, or some thousand small requests."""
_MAX_DROPPED_BYTES = 64 * 1024
"""Most bytes of an unwanted body that are read, so that the connection goes on; more end it."""
_MAX_DIGITS = 20
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_RETRY_LATER = ("too_many_sessions", "overloaded", "draining")
_UNAUTHORIZED = ServiceError("unauthorized", "expected 'Authorization: Bearer TOKEN'")


class _Request:
    """One request, as it is put together."""

    __slots__ = (
        "body", "counted_bytes", "error", "headers", "is_chunked", "is_headed", "is_kept",
        "is_page", "keep_alive", "length", "method", "num_bytes", "num_head_bytes", "pieces",
        "received_s", "url",
    )  # fmt: skip

    def __init__(self, url: bytes) -> None:
        self.url = url
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        """The first part of the body; all of it, unless there are pieces."""
        self.pieces: Pieces | None = None
        self.num_bytes = 0
        """Bytes of the body that have come."""
        self.num_head_bytes = 0
        self.length = 0
        self.is_chunked = False
        self.is_headed = False
        """Whether the headers are whole: what looks like one after that is a trailer."""
        self.is_kept = True
        """Whether somebody wants the body."""
        self.counted_bytes = 0
        """What it has of the budget of bytes in flight."""
        self.keep_alive = False
        self.method = b""
        self.error: ServiceError | None = None
        self.is_page = False
        self.received_s = 0.0

    def take_body(self) -> bytes:
        """Return the body, and hold it no longer."""
        body = self.body if self.pieces is None else self.pieces.take()
        self.body = b""
        return body


class HttpConnection(Connection):
    """One HTTP client; its requests are answered one after the other, in order.

    Sessions over HTTP are bound to no connection: the idle timeout ends those that were left.
    """

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._parser = httptools.HttpRequestParser(self)
        self._request: _Request | None = None  # that is being received
        self._answering: _Request | None = None
        self._queue: deque[_Request] = deque()
        self._asks_for_tokens = host.tokens.required
        self._rest = memoryview(b"")
        """What was read and is not parsed before there is room for it."""
        self._num_whole = 0
        """Requests that have come so far."""
        self._open_bytes = 0
        """What has come of the request that is being received, and belongs to no other."""
        self._counts_headers = False
        self._is_half_closed = False
        """Whether the client sends no more."""
        self._takes_interim = False
        """Whether the client may be sent an interim reply."""
        self._error: ServiceError | None = None

    def data_received(self, data: bytes) -> None:
        """Parse, and start what is whole."""
        if self._error is not None:  # what follows a refused request means nothing
            self._drop(data)
            return
        self.last_received = time.monotonic()
        if len(data) <= _SLICE_BYTES and not self._rest:
            self._parse(data)
        else:
            self._rest = memoryview(bytes(self._rest) + data)
            self._parse_rest()
        if self._queue and self._answering is None:
            self._next()
        if self.waits_for_room or len(self._queue) >= _MAX_PIPELINED:
            self.set_reading()

    def _parse_rest(self) -> None:
        """Parse what was read, as far as there is room for it."""
        while self._rest and self._error is None and not self._is_full:
            request = self._request
            wanted = request.length - request.num_bytes if request is not None else 0
            size = max(_SLICE_BYTES, wanted)
            data, self._rest = self._rest[:size], self._rest[size:]
            self._parse(data)
        if self._error is not None or not self._rest:
            self._rest = memoryview(b"")

    def _parse(self, data: bytes | memoryview) -> None:
        num_whole = self._num_whole
        self._counts_headers = self._open_bytes + len(data) > self.limits.max_header_bytes
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(ServiceError("bad_request", "no upgrade is offered here"))
        except httptools.HttpParserError as error:
            cause = error.__context__
            if not isinstance(cause, ServiceError):
                cause = ServiceError("bad_request", f"not HTTP/1.1: {error}")
            self._refuse(cause)
        request = self._request
        if request is None:
            self.partial_since = None
        elif self.partial_since is None:
            self.partial_since = self.last_received
        if num_whole != self._num_whole:  # where the next one began is not told
            self._open_bytes = 0
            return
        self._open_bytes += len(data)
        size = request.num_bytes if request is not None else 0
        if self._open_bytes > self.limits.max_header_bytes + size + size // 2:
            self._refuse(self._too_long())

    def eof_received(self) -> bool:
        """The client sends no more: answer what is whole, then close."""
        self._is_half_closed = True
        self.partial_since = None
        self._takes_interim = self._parser.get_http_version() == "1.1"
        if self._transport is None or self._transport.get_extra_info("sslcontext") is not None:
            return False  # TLS cannot be closed by half
        return not self._is_done

    def check_time(self, now: float) -> None:
        """End the connection if it stalls, or if the client only seemed to be half closed.

        One that closed its side and one that is gone look alike, until they are sent something: an
        interim reply, which every client of HTTP/1.1 reads over.
        """
        super().check_time(now)
        if self._is_half_closed and self._takes_interim and self._answering is not None:
            self.write(_CONTINUE)

    @property
    def _is_done(self) -> bool:
        return self._is_half_closed and self.is_idle and not self._rest

    @property
    def _is_full(self) -> bool:
        return len(self._queue) >= _MAX_PIPELINED or self.waits_for_room

    # What httptools calls. A ServiceError raised here ends the parsing of the connection.

    def on_url(self, url: bytes) -> None:
        """The request line; in parts if it came so."""
        if self._request is None:
            self._request = _Request(url)
        else:
            self._request.url += url
        if self._counts_headers and len(self._request.url) > self.limits.max_header_bytes:
            raise self._too_long()

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or a trailer, which is counted and means nothing here."""
        request = self._request
        if request is None:
            raise ServiceError("bad_request", "expected a request line before the headers")
        if self._counts_headers or request.is_headed:
            request.num_head_bytes += len(name) + len(value) + len(b": \r\n")
            if request.num_head_bytes > self.limits.max_header_bytes:
                raise self._too_long()
        if request.is_headed:
            return
        name = name.lower()
        if name in _WANTED:
            if name in request.headers and name in _ONCE:
                raise ServiceError("bad_request", f"header {name.decode()!r}: expected it once")
            request.headers[name] = value
        elif name == b"content-length":
            if value.isdigit():  # the parser refuses what is none
                request.length = int(value[:_MAX_DIGITS])
                if request.length > self.limits.max_body_bytes:
                    raise self._too_large(request.length)
        elif name == b"transfer-encoding":
            request.is_chunked = True

    def on_headers_complete(self) -> None:
        """All that decides whether the body is read at all is known."""
        request = self._request
        if request is None:
            raise ServiceError("bad_request", "expected a request line before the headers")
        request.is_headed = True
        if self._asks_for_tokens or request.url != b"/step":
            self._check_before_body(request)
        if request.length > UNCOUNTED_BYTES or b"expect" in request.headers:
            self._expect_body(request)

    def _check_before_body(self, request: _Request) -> None:
        """Find out whether the body is wanted."""
        path = request.url.partition(b"?")[0]
        is_own = path in _PAGES or self.host.pages is None
        if path != b"/step" and is_own:
            request.is_kept = False
        if self._asks_for_tokens and self._asks_for_token(path, is_own):
            try:
                self._check_token(request)
            except ServiceError as error:
                request.error = error
                request.is_kept = False
        if request.error is None and not is_own and path != b"/step":
            self._check_page(request, path)
        is_long = request.length > _MAX_DROPPED_BYTES
        if request.error is not None and (is_long or b"expect" in request.headers):
            raise request.error
        if not request.is_kept and is_long:
            raise self._too_large(request.length, _MAX_DROPPED_BYTES)

    def _check_page(self, request: _Request, path: bytes) -> None:
        """Let the page refuse a request whose body it would not look at."""
        if self.host.check_page is None:
            return
        try:
            self.host.check_page(self._page_request(request, path, self._parser.get_method(), b""))
        except ServiceError as error:
            request.error = error
            request.is_kept = False

    def _asks_for_token(self, path: bytes, is_own: bool) -> bool:
        if path == b"/step":
            return True
        if is_own:
            return path == b"/metrics"
        return path.decode("ascii", "replace").rstrip("/") not in self.host.public_pages

    def _expect_body(self, request: _Request) -> None:
        """Make room for a body. Raises ServiceError: `overloaded`."""
        if request.is_kept and request.length > UNCOUNTED_BYTES:
            self._begin_receiving(request.length)
            request.counted_bytes = request.length
        expects = request.headers.get(b"expect", b"").lower() == b"100-continue"
        if expects and self.is_idle and request.error is None:
            self.write(_CONTINUE)

    def on_body(self, data: bytes) -> None:
        """Part of the body."""
        request = self._request
        assert request is not None
        request.num_bytes += len(data)
        if not request.is_kept:
            if request.num_bytes > _MAX_DROPPED_BYTES:
                raise request.error or self._too_large(request.num_bytes, _MAX_DROPPED_BYTES)
            return
        if not request.body:
            request.body = data
        else:
            if request.pieces is None:
                request.pieces = Pieces()
                request.pieces.add(request.body)
            request.pieces.add(data)
        if request.is_chunked:
            self._grow(request)

    def _grow(self, request: _Request) -> None:
        """Count more of a body of unknown length. Raises ServiceError."""
        size = request.num_bytes
        if size > self.limits.max_body_bytes:
            raise self._too_large(size)
        if size > UNCOUNTED_BYTES and size > request.counted_bytes:
            more = min(2 * size, max(size, self.limits.max_body_bytes)) - request.counted_bytes
            if not self._budget.fits(more, request.counted_bytes):
                raise self._budget.overloaded(more)
            self._count(more)
            request.counted_bytes += more

    def on_message_complete(self) -> None:
        """The request is whole."""
        request, parser = self._request, self._parser
        assert request is not None
        self._request = None
        self._num_whole += 1
        if request.counted_bytes and self.waits_for_room:  # it came with its head
            self._stop_waiting()
            self._count(request.counted_bytes)
        request.method = parser.get_method()
        request.keep_alive = parser.should_keep_alive()
        request.received_s = time.monotonic()
        self._queue.append(request)

    def _too_long(self) -> ServiceError:
        limit = self.limits.max_header_bytes
        return ServiceError("headers_too_large", f"the headers exceed the limit of {limit} bytes")

    def _too_large(self, size: int | str, limit: int = 0) -> ServiceError:
        limit = limit or self.limits.max_body_bytes
        return ServiceError(
            "body_too_large", f"a body of {size} bytes exceeds the limit of {limit}"
        )

    def _refuse(self, error: ServiceError) -> None:
        """Answer after what is under way, then close: what follows cannot be read."""
        if self._error is None:
            self._error = error
            request = self._request or _Request(b"")
            self._request = None
            request.error = error
            request.keep_alive = False
            self._free(request)
            self._queue.append(request)

    def _free(self, request: _Request) -> None:
        """Free the body of a request that is not answered by it."""
        if request.counted_bytes and self.waits_for_room:
            self._stop_waiting()
            request.counted_bytes = 0
        request.take_body()
        self._give(request.counted_bytes)
        request.counted_bytes = 0

    def _next(self) -> None:
        """Answer the oldest request, unless one is being answered."""
        num_left = _MAX_PIPELINED
        while self._queue and self._answering is None and not self.is_closing:
            if not num_left:  # others have a turn
                asyncio.get_running_loop().call_soon(self._next)
                return
            num_left -= 1
            request = self._answering = self._queue.popleft()
            path = request.url if request.url == b"/step" else request.url.partition(b"?")[0]
            try:
                if request.error is not None:
                    raise request.error
                if path == b"/step":
                    self._put(request)
                elif path in _PAGES or self.host.pages is None:
                    self._page(request, path)
                else:
                    self._put_page(request, path)
            except ServiceError as error:
                self.host.sessions.figures.count_error(error.code)
                self._reply_error(request, error)
        if self.is_paused:
            self.set_reading()

    def _put(self, request: _Request) -> None:
        """Hand a step to the dispatcher. Raises ServiceError: it is refused."""
        if request.method != b"POST":
            raise ServiceError("method_not_allowed", "/step: expected POST")
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
        self.num_under_way = 1
        body = request.take_body()
        self.host.dispatcher.put((self, kind, session, body, request, request.received_s))

    def _put_page(self, request: _Request, path: bytes) -> None:
        """Hand a page of the service to the dispatcher. Raises ServiceError: it is refused."""
        request.is_page = True
        page = self._page_request(request, path, request.method, request.take_body())
        self.num_under_way = 1
        self.host.dispatcher.put((self, PAGE, b"", page, request, request.received_s))

    def _page_request(
        self, request: _Request, path: bytes, method: bytes, body: bytes
    ) -> PageRequest:
        headers = {name: value for name, value in request.headers.items() if name in HEADERS}
        text = path.decode("ascii", "replace")
        return PageRequest(method.decode("ascii", "replace"), text, headers, body)

    def _check_token(self, request: _Request) -> None:
        if not self.host.tokens.accept_header(request.headers.get(b"authorization", b"")):
            raise _UNAUTHORIZED

    def _page(self, request: _Request, path: bytes) -> None:
        if path not in _PAGES:
            raise ServiceError("not_found", "expected /step, /health, /ready or /metrics")
        if request.method not in (b"GET", b"HEAD"):
            raise ServiceError("method_not_allowed", f"{_text(path)}: expected GET")
        if path == b"/metrics":
            self.host.spawn(self._metrics(request))
            return
        if path == b"/ready" and self.host.sessions.draining:
            raise ServiceError("draining", "the server is shutting down")
        self._reply(request, 200, b"text/plain", path[1:] + b"\n")

    async def _metrics(self, request: _Request) -> None:
        text = await self.host.metrics()
        self._reply(request, 200, b"text/plain; version=0.0.4", text.encode())
        self._next()

    def reply(self, item: Item, reply: bytes | PageReply | ServiceError) -> None:
        """Send the answer to a request that was put into the dispatcher."""
        request: _Request = item[4]
        self.num_under_way = 0
        if request.counted_bytes:
            self._give(request.counted_bytes)
            request.counted_bytes = 0
        if not isinstance(reply, ServiceError) and len(reply) > UNCOUNTED_BYTES:
            reply = self._sendable(reply)
        if isinstance(reply, ServiceError):
            self._reply_error(request, reply)
        elif isinstance(reply, PageReply):
            self._reply_page(request, reply)
        else:
            self._reply(request, 200, b"application/octet-stream", reply)
        if self.host.access_log:
            log_request(
                peer=self.peer,
                request_id=_request_id(request).decode(),
                kind=item[1],
                session=item[2],
                path=item[3].path if isinstance(item[3], PageRequest) else "",
                received_bytes=len(item[3]),
                reply=reply,
                elapsed_s=time.monotonic() - item[5],
            )
        if self._queue:
            self._next()

    def _reply_page(self, request: _Request, reply: PageReply, extra: bytes = b"") -> None:
        for name, value in reply.headers.items():
            extra += b"%b: %b\r\n" % (name, value)
        self._reply(request, reply.status, reply.content_type, reply.body, extra)

    def _reply_error(self, request: _Request, error: ServiceError) -> None:
        body = json.dumps({"error": {"code": error.code, "message": error.message}}).encode()
        status = STATUS.get(error.code, 500)
        extra = b""
        if error.code in _RETRY_LATER:
            extra = b"Retry-After: 1\r\n"
        elif error.code == "unauthorized":
            extra = b"WWW-Authenticate: Bearer\r\n"
        elif error.code == "method_not_allowed":
            extra = b"Allow: POST\r\n" if b"/step" in request.url else b"Allow: GET, HEAD\r\n"
        request.headers.setdefault(b"x-request-id", secrets.token_hex(8).encode())
        if self._is_page(request):
            assert self.host.pages is not None
            self._reply_page(request, self.host.pages.error(error, status), extra)
        else:
            self._reply(request, status, b"application/json", body, extra)

    def _is_page(self, request: _Request) -> bool:
        """Whether a request is for a page of the service, even if it could not be read whole."""
        path = request.url.partition(b"?")[0]
        own = not path or path == b"/step" or path in _PAGES
        return request.is_page or (self.host.pages is not None and not own)

    def _reply(
        self, request: _Request, status: int, content_type: bytes, body: bytes, extra: bytes = b""
    ) -> None:
        size = len(body)
        if b"x-request-id" in request.headers:
            extra += b"X-Request-Id: %b\r\n" % _request_id(request)
        if not request.keep_alive:
            extra += b"Connection: close\r\n"
        if request.method == b"HEAD":
            body = b""
        head = b"%bContent-Length: %d\r\n%b\r\n" % (_head(status, content_type), size, extra)
        if len(body) < _LARGE_BYTES:
            self.write(head + body)
        else:
            self.write_parts(head, body)
        if request.counted_bytes:
            self._give(request.counted_bytes)
            request.counted_bytes = 0
        self._answering = None
        if self._error is not None and not self._queue:
            self.linger()
        elif not request.keep_alive or (self._is_half_closed and self._is_done):
            self.close()

    def refuse_slow(self) -> None:
        """A request has been under way to us for too long."""
        limit = self.limits.receive_timeout_s
        self._refuse(ServiceError("deadline", f"no whole request within {limit:g} s"))
        self._next()

    @property
    def is_too_busy(self) -> bool:
        """Whether to read no more for now."""
        return self._is_full or bool(self._rest)

    def set_reading(self) -> None:
        """Parse what was read already, then read, or stop reading, as the state asks for."""
        if self._rest and not self.is_blocked and not self._is_full:
            self._parse_rest()
            if self._queue and self._answering is None:
                asyncio.get_running_loop().call_soon(self._next)
            elif self._is_done:
                self.close()
        if not self._is_half_closed:
            super().set_reading()

    @property
    def is_idle(self) -> bool:
        """Whether no request is under way."""
        return self._answering is None and not self._queue

    def ended(self) -> None:
        """Forget what was not answered."""
        self._queue.clear()
        self._request = None
        self._rest = memoryview(b"")


def _request_id(request: _Request) -> bytes:
    """Return a client's id of its request, or a sign where it cannot be echoed as it is."""
    given = request.headers.get(b"x-request-id", b"")
    fits = len(given) <= _MAX_REQUEST_ID_BYTES and given.isascii() and given.decode().isprintable()
    return given if fits else b"-"


def _text(value: bytes) -> str:
    return value[:100].decode(errors="replace")


_second = 0
_heads: dict[tuple[int, bytes], bytes] = {}


def _head(status: int, content_type: bytes) -> bytes:
    """Return the status line and the headers that every reply of this second has."""
    global _second
    now = int(time.time())
    if now != _second:
        _second = now
        _heads.clear()
    head = _heads.get((status, content_type))
    if head is None:
        head = b"HTTP/1.1 %d %b\r\nDate: %b\r\nContent-Type: %b\r\n" % (
            status,
            HTTPStatus(status).phrase.encode(),
            formatdate(now, usegmt=True).encode(),
            content_type,
        )
        _heads[status, content_type] = head
    return head
