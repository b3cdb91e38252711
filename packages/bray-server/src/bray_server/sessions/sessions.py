"""Answering requests: each goes to the user's service, whichever protocol it came by."""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from types import CoroutineType
from typing import Any

from bray_core.errors import BrayError, ServiceError
from bray_core.json_body import JsonBody
from bray_server.limits.bounded_log import BoundedLog
from bray_server.limits.limits import Limits
from bray_server.sessions.deadlines import cancelled, resume_with_deadline, with_deadline
from bray_server.sessions.error_codes import MethodNotAllowedError
from bray_server.sessions.json_replies import in_form_of
from bray_server.sessions.page_streams import PageStream
from bray_server.sessions.pages import PAGE, PageReply, PageRequest, Pages, grouped, public_paths
from bray_server.sessions.server_metrics import BUCKETS_S, ServerMetrics
from bray_server.sessions.services import Service, not_bytes, sort_service
from bray_server.sessions.session_table import (
    OpenSession,
    PeerWorkers,
    SessionOwner,
    SessionTable,
)
from bray_server.wire.frames import Kind

logger = logging.getLogger(__name__)


_START, _TICK, _END, _CALL = map(int, (Kind.START, Kind.TICK, Kind.END, Kind.CALL))

OnWait = Callable[[], None]
"""Called when a request waits for the first time."""


class Sessions:
    """Answers requests by the user's service, and opens and ends sessions.

    One request of a session runs at a time; a second one meanwhile is refused as `busy`. An
    exception in `start` or `end` removes the session; one in `tick` leaves it as it is.

    Args:
        service: The service: see `bray_server.sessions.services`.
        limits: Limits of the server.
        others: Other workers that share the port with this one.
        pages: Further pages of the service.

    Raises:
        ConfigError: The service is neither a factory nor an object with an async `tick`.
    """

    def __init__(
        self,
        service: Service,
        limits: Limits,
        others: PeerWorkers | None = None,
        pages: Pages | None = None,
    ) -> None:
        self._factory, self._stateless = sort_service(service)
        self._makes_way = bool(getattr(service, "makes_way", False))
        self.ticks = getattr(self._stateless, "ticks", None)
        """Answers several calls at once, if the service does."""
        self.calls: OpenSession | None = None
        """Stands for the stateless service where `DirectTicks` asks it."""
        if self._stateless is not None and self.ticks is None:
            self.calls = OpenSession(self._stateless, None, "")  # type: ignore[arg-type]
            self.calls.busy = False
        self._limits = limits
        self.max_requests = limits.max_requests
        """Most requests that are under way at a time."""
        self._others = others
        self._pages = pages
        self.grouped_pages = grouped(pages)
        """Answers several requests for pages at once, if the service does."""
        self._public = public_paths(pages)
        self._table = SessionTable(limits, others)
        self.entries = self._table.entries
        """Open sessions by id."""
        self._log = BoundedLog(logger)
        self.num_running = 0
        """Number of requests under way."""
        self.num_streams = 0
        """Number of pages that are being sent in pieces."""
        self._changed = asyncio.Event()
        self.draining = False
        """Whether new sessions are refused; calls and open sessions go on."""
        self.ends_calls = False
        """Whether calls are refused, too."""
        self.metrics = ServerMetrics()

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def answers_calls_together(self) -> bool:
        """Whether calls go to `GroupedRequests`."""
        return self.ticks is not None

    async def answer(
        self,
        kind: int,
        session: bytes,
        body: Any,
        owner: SessionOwner | None = None,
        waits: OnWait | None = None,
        received_s: float = 0.0,
    ) -> Any:
        """Answer one request: return a body or a ServiceError, never raise one.

        Args:
            kind: START, TICK, END or CALL of `frames.Kind`, or PAGE.
            session: Id of the session in UTF-8; not used for CALL and PAGE.
            body: Body of the request; for PAGE a `PageRequest`, answered by a `PageReply` or a
                `PageStream`.
            owner: Connection that the request came on.
            waits: Called when the answer waits for the first time, if it does.
            received_s: Time when the request was whole, by `time.monotonic`.
        """
        metrics = self.metrics
        metrics.requests[kind] += 1
        metrics.bytes_in += len(body)
        self.num_running += 1
        try:
            if self.num_running > self.max_requests:
                raise ServiceError("overloaded", f"{self.num_running - 1} requests are under way")
            entry = self.entries.get(session)
            if kind == _TICK and entry is not None and not entry.busy:
                entry.busy = True
                try:
                    work = entry.actor.tick(body)
                    if type(body) is JsonBody or type(work) is not CoroutineType:
                        work = in_form_of(body, work)
                    try:  # `with_deadline`, written out: this is the path that every tick takes
                        wanted = work.send(None)
                    except StopIteration as done:
                        reply = done.value
                    except asyncio.CancelledError:
                        raise cancelled() from None
                    else:
                        if waits is not None:
                            waits()
                        going = resume_with_deadline(work, wanted, self._limits.tick_timeout_s)
                        del wanted  # as in `with_deadline`
                        reply = await going
                finally:
                    entry.busy = False
                    entry.last_used = time.monotonic()
            else:
                reply = await self._other(kind, session, body, entry, owner, waits)
            if type(reply) is not bytes and not isinstance(
                reply, PageReply | PageStream | JsonBody
            ):
                raise not_bytes(reply)
            metrics.bytes_out += len(reply)
            return reply
        except (Exception, SystemExit) as error:  # noqa: BLE001  the request's edge: a reply
            failure = self.refusal(error, session)
            metrics.count_error(failure.code)
            return failure
        finally:
            self.count_done(time.monotonic() - received_s)

    # Pages that are sent in pieces: a stream is under way after its page was answered.

    def begin_stream(self) -> None:
        """Count a streamed page that begins."""
        self.num_running += 1
        self.num_streams += 1

    def end_stream(self, num_bytes: int) -> None:
        """Count a streamed page that is over, whole or not."""
        self.num_running -= 1
        self.num_streams -= 1
        self.metrics.bytes_out += num_bytes
        if self.draining:
            self._changed.set()

    def failed(self, error: Exception) -> ServiceError:
        """Count and log an error of a streamed page, and return it as a client is told it."""
        failure = self.refusal(error, b"")
        self.metrics.count_error(failure.code)
        return failure

    # What `DirectTicks` does for a tick beside what it writes out, as `answer` does.

    @property
    def tick_timeout_s(self) -> float:
        """Time that a service may take for one request."""
        return self._limits.tick_timeout_s

    def succeed(
        self, entry: OpenSession, session: bytes, reply: Any, received_s: float
    ) -> bytes | ServiceError:
        """Count a tick that is done, and return its reply.

        Args:
            entry: The session, or what stands for the service.
            session: Id of the session.
            reply: What the service answered.
            received_s: Time when the request was whole, by `time.monotonic`.
        """
        if type(reply) is not bytes:
            return self.fail(entry, session, not_bytes(reply), received_s)
        self.metrics.bytes_out += len(reply)
        entry.busy = False  # as in `leave`
        entry.last_used = now = time.monotonic()
        self.count_done(now - received_s)
        return reply

    def fail(
        self, entry: OpenSession, session: bytes, error: BaseException, received_s: float
    ) -> ServiceError:
        """Count a tick that failed, and return the error that answers it.

        Args:
            entry: The session, or what stands for the service.
            session: Id of the session.
            error: What the service raised.
            received_s: Time when the request was whole, by `time.monotonic`.
        """
        failure = self.refusal(error, session)
        self.metrics.count_error(failure.code)
        self.leave(entry, received_s)
        return failure

    def leave(self, entry: OpenSession, received_s: float) -> None:
        """Count a tick less under way.

        Args:
            entry: The session, or what stands for the service.
            received_s: Time when the request was whole, by `time.monotonic`.
        """
        entry.busy = False
        entry.last_used = now = time.monotonic()
        self.count_done(now - received_s)

    async def finish(
        self,
        entry: OpenSession,
        session: bytes,
        going: Awaitable[Any],
        received_s: float,
    ) -> bytes | ServiceError:
        """Return the reply to a tick that waits, once it is there.

        Args:
            entry: The session, or what stands for the service.
            session: Id of the session.
            going: What is left of the tick.
            received_s: Time when the request was whole, by `time.monotonic`.
        """
        try:
            reply = await going
        except (Exception, SystemExit) as error:  # noqa: BLE001  the request's edge: a reply
            return self.fail(entry, session, error, received_s)
        except BaseException:
            self.leave(entry, received_s)
            raise
        return self.succeed(entry, session, reply, received_s)

    def count_done(self, elapsed_s: float, count: int = 1) -> None:
        """Count requests less under way, and their time.

        Args:
            elapsed_s: Seconds since the first of them was whole.
            count: Number of requests that were answered together.
        """
        metrics = self.metrics
        metrics.latency[bisect_left(BUCKETS_S, elapsed_s)] += count
        metrics.latency_s += elapsed_s * count
        self.num_running -= count
        if self.draining:
            self._changed.set()

    def note_change(self) -> None:
        """Let a drain see that less is under way."""
        self._changed.set()

    async def _other(
        self,
        kind: int,
        session: bytes,
        body: Any,
        entry: OpenSession | None,
        owner: SessionOwner | None,
        waits: OnWait | None,
    ) -> bytes | PageReply | PageStream:
        """Answer any request but the tick of a session that is open here and not busy."""
        if kind == PAGE:
            return await self._page(body, owner, waits)
        if kind == _CALL:
            return await self._call(body, waits)
        if kind == _START:
            return await self._start(session, body, owner, waits)
        if entry is None:
            self._check_session(session)
            if self._others is None or (owner is not None and owner.is_worker):
                raise ServiceError("unknown_session", f"session {_text(session)!r} is not open")
            self.metrics.forwarded += 1
            return await self._with_deadline(self._others.forward(kind, session, body), waits)
        if entry.busy:
            raise ServiceError("busy", f"session {_text(session)!r} has a request under way")
        entry.busy = True
        try:
            return await self._with_deadline(in_form_of(body, entry.actor.end(body)), waits)
        finally:
            self._remove(session, entry)

    async def _call(self, body: bytes, waits: OnWait | None) -> bytes:
        if self._stateless is None:
            raise ServiceError(
                "bad_request",
                "this service has sessions: a request needs a session and its kind (over HTTP the "
                "headers `session` and `step_kind`: start, tick or end; nginx drops a name with an "
                "underscore unless `underscores_in_headers` is on)",
            )
        if self.ends_calls:
            raise ServiceError("draining", "the server is shutting down")
        return await self._with_deadline(in_form_of(body, self._stateless.tick(body)), waits)

    async def _page(
        self, request: PageRequest, owner: SessionOwner | None, waits: OnWait | None
    ) -> PageReply | PageStream:
        assert self._pages is not None
        if self.ends_calls and request.path.rstrip("/") not in self._public:
            raise ServiceError("draining", "the server is shutting down")
        request.is_draining = self.draining
        request.others = self._others
        request.is_forwarded = owner is not None and owner.is_worker
        reply: PageReply | PageStream = await with_deadline(
            self._pages.answer(request), self._limits.tick_timeout_s, waits
        )
        return reply

    async def _start(
        self, session: bytes, body: bytes, owner: SessionOwner | None, waits: OnWait | None
    ) -> bytes:
        name = self._check_session(session)
        if self.draining and self._makes_way:
            raise ServiceError("not_ready", "another server takes this one's place: start again")
        if self.draining:
            raise ServiceError("draining", "the server is shutting down: no new sessions")
        assert self._factory is not None
        entry = self._table.open(session, partial(self._factory, name), owner)
        try:
            reply = await self._with_deadline(in_form_of(body, entry.actor.start(body)), waits)
            if not isinstance(reply, bytes):
                raise not_bytes(reply)
        except BaseException:
            self._remove(session, entry)
            raise
        entry.busy = False
        entry.last_used = time.monotonic()
        return reply

    def _check_session(self, session: bytes) -> str:
        if self._factory is None:
            raise ServiceError("bad_request", "this service has no sessions: call it without one")
        if not 0 < len(session) <= self._limits.max_session_bytes:
            raise ServiceError(
                "bad_session",
                f"expected a session id of 1 to {self._limits.max_session_bytes} bytes, "
                f"got {len(session)}",
            )
        try:
            return session.decode()
        except UnicodeDecodeError:
            raise ServiceError("bad_session", "the session id is not UTF-8") from None

    def _with_deadline(
        self, work: Coroutine[Any, Any, bytes], waits: OnWait | None
    ) -> Coroutine[Any, Any, bytes]:
        return with_deadline(work, self._limits.tick_timeout_s, waits)

    def refusal(self, error: BaseException, session: bytes) -> ServiceError:
        """Log the user's exception, and return the error reply for it.

        A `SystemExit` is one of them: let through, it would end the event loop, and leave a process
        behind that answers nobody.

        The reply is a new error: the raised one holds its stack frames, and so the request's body,
        until the garbage collector comes.
        """
        if isinstance(error, ServiceError):
            more = "..." if len(error.message) > _MAX_MESSAGE else ""
            told = error.message[:_MAX_MESSAGE] + more
            if isinstance(error, MethodNotAllowedError):
                return MethodNotAllowedError(told, error.allowed)
            return ServiceError(error.code, told)
        expected = isinstance(error, BrayError)
        text = str(error)[:_MAX_MESSAGE]
        self._log.error(f"session {_text(session)!r}: {text}", None if expected else error)
        return ServiceError("service_error", f"{type(error).__name__}: {text}")

    async def disconnect(self, owner: SessionOwner) -> None:
        """Abort the sessions bound to a connection that is gone."""
        await self._abort(self._table.owned_by(owner), "disconnected")

    async def reap_idle(self, late_s: float) -> None:
        """Abort sessions that have been idle for too long. Call it from time to time.

        Args:
            late_s: How much later than planned it is called: so long the server stood still itself,
                which no session answers for.
        """
        self._log.flush()
        now = time.monotonic()
        if late_s:
            for entry in self.entries.values():
                entry.last_used = min(now, entry.last_used + late_s)
        oldest = now - self._limits.idle_timeout_s
        idle = [(s, e) for s, e in self.entries.items() if not e.busy and e.last_used < oldest]
        await self._abort(idle, "idle for too long")

    async def drain(self, timeout_s: float) -> None:
        """Refuse new sessions, let open ones and running requests end, then abort what is left."""
        self.draining = self.ends_calls = True
        try:
            async with asyncio.timeout(timeout_s):
                while self.num_running or self.entries:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            logger.log(
                logging.WARNING if timeout_s else logging.DEBUG,  # nobody asked for a drain
                "drain: %d sessions and %d requests left after %g s",
                len(self.entries),
                self.num_running,
                timeout_s,
            )
        await self._abort(list(self.entries.items()), "the server is shutting down")

    def _remove(self, session: bytes, entry: OpenSession) -> bool:
        removed = self._table.remove(session, entry)
        if self.draining:
            self._changed.set()
        return removed

    async def _abort(self, sessions: list[tuple[bytes, OpenSession]], reason: str) -> None:
        # All are free at once: a client that is back starts them again while one aborts slowly.
        for session, entry in [pair for pair in sessions if self._remove(*pair)]:
            abort = getattr(entry.actor, "abort", None)  # a service may do without
            if abort is None:
                continue
            try:
                await with_deadline(abort(reason), self._limits.tick_timeout_s)
            except (Exception, SystemExit) as error:  # noqa: BLE001  code of a user, whose session is gone
                self._log.error(f"session {_text(session)!r}: abort failed: {error}", error)


_MAX_MESSAGE = 2_000
"""Longest error message that is sent to a client, in characters."""


def _text(session: bytes) -> str:
    return session[:100].decode(errors="replace")
