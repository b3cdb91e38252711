"""Reading HTTP/1.1: bytes become requests, in bounded memory."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections import deque

import httptools

from bray_core.errors import ServiceError
from bray_server.hosting.connection import Connection, ServerContext
from bray_server.hosting.http_request import HttpRequest
from bray_server.hosting.repeated_head import RepeatedHead, head_of
from bray_server.limits.byte_budget import UNCOUNTED_BYTES
from bray_server.sessions.pages import HEADERS, PageRequest
from bray_server.wire.byte_pieces import BytePieces

SERVER_PAGES = (b"/health", b"/ready", b"/metrics")
MAX_PIPELINED = 64
"""Number of whole requests of one connection that wait for their turn."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_ONCE = HEADERS | {b"session", b"step_kind", b"authorization"}
_WANTED = _ONCE | {b"x-request-id", b"expect", b"upgrade"}
_SLICE_BYTES = 68 * 1024
"""Bytes that are parsed at once: a body of 64 KiB with its headers, or 1,000 small requests."""
_MAX_DROPPED_BYTES = 64 * 1024
"""Longest unwanted body that is read, so that the connection can go on; a longer one ends it."""
_MAX_DIGITS = 20


class HttpReader(Connection):
    """The reading half of an HTTP connection: whole requests go into a queue."""

    def __init__(self, host: ServerContext) -> None:
        super().__init__(host)
        self._parser = httptools.HttpRequestParser(self)
        self._request: HttpRequest | None = None  # that is being received
        self._answering: HttpRequest | None = None
        self._queue: deque[HttpRequest] = deque()
        self._asks_for_tokens = host.tokens.required
        self._rest = memoryview(b"")
        """Data that was read, and waits for room before it is parsed."""
        self._num_whole = 0
        """Number of whole requests so far."""
        self._is_between = True
        """Whether nothing has come yet of the request after the last whole one."""
        self._head: RepeatedHead | None = None
        """Head of the last request, if the parser has seen nothing since."""
        self._open_bytes = 0
        """Bytes of the request that is being received."""
        self._counts_headers = False
        self._is_half_closed = False
        """Whether the client sends no more."""
        self._takes_interim = False
        """Whether the client may be sent an interim reply."""
        self._error: ServiceError | None = None

    @abstractmethod
    def _next(self) -> None:
        """Answer the oldest request of the queue, unless one is being answered."""

    @abstractmethod
    def _answer_repeated(self, head: RepeatedHead, body: bytes) -> bool:
        """Answer a request while no other is under way; False: it belongs in the queue."""

    def data_received(self, data: bytes) -> None:
        """Parse data, and start to answer."""
        head = self._head
        if head is not None and len(data) == head.num_bytes and data.startswith(head.data):
            self.last_received = time.monotonic()
            body = data[head.num_head_bytes :]
            if self._answering is not None or self._queue or not self._answer_repeated(head, body):
                self._repeat(head, body)
            return
        if self._error is not None:  # what follows a refused request means nothing
            self._drop(data)
            return
        if len(data) <= _SLICE_BYTES and not self._rest:
            self._parse_all(data)
        else:
            self._rest = memoryview(bytes(self._rest) + data)
            self._parse_rest()
        self._start()

    def _start(self) -> None:
        if self._queue and self._answering is None:
            self._next()
        if self.waits_for_room or len(self._queue) >= MAX_PIPELINED:
            self.set_reading()

    def _parse_all(self, data: bytes) -> None:
        """Parse what was read; if it is one whole request, keep its head for the next."""
        is_start, num_whole = self._is_between, self._num_whole
        self._parse(data)
        is_one = is_start and self._is_between and self._num_whole == num_whole + 1
        if is_one and self._error is None and not self._asks_for_tokens:
            self._head = head_of(data, self._queue[-1])

    def _repeat(self, head: RepeatedHead, body: bytes) -> None:
        """Put a request that has the head of the one before into the queue."""
        request = head.request.again(b"", self.last_received)
        if request.url != b"/step":
            self._check_before_body(request)
        if request.wants_body:
            request.body = body
        self._queue.append(request)
        self._start()

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
        num_whole, self._head = self._num_whole, None
        self._counts_headers = self._open_bytes + len(data) > self.limits.max_header_bytes
        try:
            self._feed(data)
        except ServiceError as error:
            self._refuse(error)
        except httptools.HttpParserError as error:
            cause = error.__context__
            if not isinstance(cause, ServiceError):
                cause = ServiceError("bad_request", f"not HTTP/1.1: {error}")
            self._refuse(cause)
        request = self._request
        if request is not None:
            self.partial_since = self.partial_since or time.monotonic()
        elif num_whole != self._num_whole or self._error is not None:
            self.partial_since = None  # else it was empty lines, which begin nothing
        if num_whole != self._num_whole:  # where the next one began is not told
            self._open_bytes = 0
            return
        self._open_bytes += len(data)
        size = request.num_bytes if request is not None else 0
        if self._open_bytes > self.limits.max_header_bytes + size + size // 2:
            self._refuse(self._too_long())

    def _feed(self, data: bytes | memoryview) -> None:
        """Let the parser have data; where it stops for another protocol, HTTP goes on.

        A server may ignore `Upgrade` (RFC 9110, section 7.8), which some clients of HTTP/2 send
        with their first request. The parser hands over no body of such a request: it gets the
        head once more without it, and then the rest.
        """
        while data:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = memoryview(data)[upgrade.args[0] :]
                head = self._head_without_upgrade()
                self._request = None
                self._parser = httptools.HttpRequestParser(self)
                self._parser.feed_data(head)
            else:
                return

    def _head_without_upgrade(self) -> bytes:
        """Return the head of a request that asks for another protocol, as one that does not."""
        request, parser = self._request, self._parser
        assert request is not None
        method = parser.get_method()
        if method == b"CONNECT":
            raise ServiceError("bad_request", "CONNECT: this is no proxy")
        headers = {name: request.headers[name] for name in request.headers if name != b"upgrade"}
        headers[b"connection"] = b"keep-alive" if parser.should_keep_alive() else b"close"
        if request.length:
            headers[b"content-length"] = b"%d" % request.length
        lines = [b"%b: %b" % header for header in headers.items()]
        version = parser.get_http_version().encode()
        return b"\r\n".join([b"%b %b HTTP/%b" % (method, request.url, version), *lines, b"", b""])

    def eof_received(self) -> bool:
        """Answer the whole requests, then close: the client sends no more.

        One that is being sent a page in pieces has left: clients of such pages close no half.
        """
        if self._is_streaming:
            return False
        self._is_half_closed = True
        self.partial_since = None
        self._takes_interim = self._parser.get_http_version() == "1.1"
        if self._transport is None or self._transport.get_extra_info("sslcontext") is not None:
            return False  # TLS cannot be closed by half
        return not self._is_done

    @property
    @abstractmethod
    def _is_streaming(self) -> bool:
        """Whether a page is being sent in pieces."""

    @property
    def _is_done(self) -> bool:
        return self._is_half_closed and self.is_idle and not self._rest

    @property
    def _is_full(self) -> bool:
        return len(self._queue) >= MAX_PIPELINED or self.waits_for_room

    @property
    def is_too_busy(self) -> bool:
        """Whether to read no more for now."""
        return self._is_full or bool(self._rest)

    def set_reading(self) -> None:
        """Parse data that was read already, then start or stop reading, by the state."""
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
        """Forget requests that were not answered."""
        self._queue.clear()
        self._request = None
        self._rest = memoryview(b"")

    # What httptools calls. A ServiceError raised here ends the parsing of the connection.

    def on_message_begin(self) -> None:
        """Note that something has come of a request."""
        self._is_between = False

    def on_url(self, url: bytes) -> None:
        """Take the request line, or a part of it."""
        if self._request is None:
            self._request = HttpRequest(url)
        else:
            self._request.url += url
        if self._counts_headers and len(self._request.url) > self.limits.max_header_bytes:
            raise self._too_long()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; a trailer is counted and ignored."""
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
            if request.is_chunked or value.strip().lower() != b"chunked":
                text = value[:100].decode(errors="replace")
                raise ServiceError(
                    "bad_request", f"Transfer-Encoding: expected chunked alone, got {text!r}"
                )
            request.is_chunked = True
            request.headers[name] = value

    def on_headers_complete(self) -> None:
        """Decide whether the body is read at all."""
        request = self._request
        if request is None:
            raise ServiceError("bad_request", "expected a request line before the headers")
        request.is_headed = True
        if (version := self._parser.get_http_version()) != "1.1":
            self._check_version(request, version)
        if self._parser.should_upgrade():
            return  # see `_feed`
        if not request.url.startswith(b"/"):
            request.drop_authority()
        if self._asks_for_tokens or request.url != b"/step":
            self._check_before_body(request)
        if request.length > UNCOUNTED_BYTES or b"expect" in request.headers:
            self._expect_body(request)

    def _check_version(self, request: HttpRequest, version: str) -> None:
        """Refuse what is neither HTTP/1.1 nor a proper request of HTTP/1.0. Raises ServiceError."""
        if version != "1.0":
            text = f"expected HTTP/1.1 or HTTP/1.0, got a request line of HTTP/{version}"
            raise ServiceError("bad_request", text)
        if request.is_chunked:  # where the body ends may be seen otherwise by a proxy of HTTP/1.0
            raise ServiceError(
                "bad_request", "Transfer-Encoding: HTTP/1.0 has none: expected Content-Length"
            )
        request.speaks_1_0 = True

    def _check_before_body(self, request: HttpRequest) -> None:
        """Find out whether the body is wanted."""
        path = request.path
        is_own = path in SERVER_PAGES or self.host.pages is None
        if path != b"/step" and is_own:
            request.wants_body = False
        if self._asks_for_tokens and self._asks_for_token(path, is_own):
            try:
                self._check_token(request)
            except ServiceError as error:
                request.error = error
                request.wants_body = False
        if request.error is None and not is_own and path != b"/step":
            self._check_page(request, path)
        is_long = request.length > _MAX_DROPPED_BYTES
        if request.error is not None and (is_long or b"expect" in request.headers):
            raise request.error
        if not request.wants_body and is_long:
            raise self._too_large(request.length, _MAX_DROPPED_BYTES)

    def _check_page(self, request: HttpRequest, path: bytes) -> None:
        """Let the page refuse a request whose body it would not look at."""
        if self.host.check_page is None:
            return
        try:
            self.host.check_page(self._page_request(request, path, self._parser.get_method(), b""))
        except ServiceError as error:
            request.error = error
            request.wants_body = False

    def _asks_for_token(self, path: bytes, is_own: bool) -> bool:
        if path == b"/step":
            return True
        if is_own:
            return path == b"/metrics"
        return path.decode("ascii", "replace").rstrip("/") not in self.host.public_pages

    def _check_token(self, request: HttpRequest) -> None:
        if not self.host.tokens.accept_header(request.headers.get(b"authorization", b"")):
            raise ServiceError("unauthorized", "expected 'Authorization: Bearer TOKEN'")

    def _page_request(
        self, request: HttpRequest, path: bytes, method: bytes, body: bytes
    ) -> PageRequest:
        headers = {name: value for name, value in request.headers.items() if name in HEADERS}
        text = path.decode("ascii", "replace")
        return PageRequest(method.decode("ascii", "replace"), text, headers, body)

    def _expect_body(self, request: HttpRequest) -> None:
        """Make room for a body. Raises ServiceError: `overloaded`."""
        if request.wants_body and request.length > UNCOUNTED_BYTES:
            self._begin_receiving(request.length)
            request.counted_bytes = request.length
        expects = request.headers.get(b"expect", b"").lower() == b"100-continue"
        if expects and self.is_idle and request.error is None and not request.speaks_1_0:
            self.write(CONTINUE)

    def on_body(self, data: bytes) -> None:
        """Take a part of the body."""
        request = self._request
        assert request is not None
        request.num_bytes += len(data)
        if not request.wants_body:
            if request.num_bytes > _MAX_DROPPED_BYTES:
                raise request.error or self._too_large(request.num_bytes, _MAX_DROPPED_BYTES)
            return
        if not request.body:
            request.body = data
        else:
            if request.pieces is None:
                request.pieces = BytePieces()
                request.pieces.add(request.body)
            request.pieces.add(data)
        if request.is_chunked:
            self._grow(request)

    def _grow(self, request: HttpRequest) -> None:
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
        """Put the request into the queue: it is whole."""
        request, parser = self._request, self._parser
        assert request is not None
        if parser.should_upgrade():
            return  # see `_feed`
        self._request = None
        self._is_between = True
        self._num_whole += 1
        if request.counted_bytes and self.waits_for_room:  # it came with its head
            self._stop_waiting()
            self._count(request.counted_bytes)
        request.method = parser.get_method()
        request.keep_alive = parser.should_keep_alive()
        self.last_received = request.received_s = time.monotonic()
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
        """Answer with an error after what is under way, then close: nothing more can be read."""
        if self._error is None:
            self._error = error
            self._head = None
            request = self._request or HttpRequest(b"")
            self._request = None
            request.error = error
            request.keep_alive = False
            self._free(request)
            self._queue.append(request)

    def _free(self, request: HttpRequest) -> None:
        """Free the body of a request that is answered by an error."""
        if request.counted_bytes and self.waits_for_room:
            self._stop_waiting()
            request.counted_bytes = 0
        request.take_body()
        self._give(request.counted_bytes)
        request.counted_bytes = 0

    def refuse_slow(self) -> None:
        """Refuse a request that takes too long to arrive."""
        limit = self.limits.receive_timeout_s
        self._refuse(ServiceError("deadline", f"no whole request within {limit:g} s"))
        self._next()
