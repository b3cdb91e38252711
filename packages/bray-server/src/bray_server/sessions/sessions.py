"""Sessions and the services behind them: what a request does, whichever way it came.

Errors are `ServiceError`s with one of these codes (HTTP status in brackets):

    bad_request [400]        bad_frame [400]          bad_session [400]      bad_delta [400]
    unauthorized [401]       unknown_session [404]    not_found [404]        deadline [408]
    method_not_allowed [405] session_exists [409]     busy [409]             worker_lost [410]
    body_too_large [413]     too_many_sessions [429]  overloaded [429]       service_error [500]
    headers_too_large [431]  draining [503]
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from bray_core.errors import BrayError, ConfigError, ServiceError
from bray_core.protocols import ActorProtocol
from bray_server.hosting.figures import BUCKETS_S, Figures
from bray_server.hosting.pages import PAGE, PageOwners, PageReply, PageRequest, Pages, public_paths
from bray_server.limits.bounded_log import BoundedLog
from bray_server.limits.client_shares import ClientShares
from bray_server.limits.limits import Limits
from bray_server.sessions.bounded import bounded, go_on
from bray_server.wire.frames import Kind

logger = logging.getLogger(__name__)

STATUS = {
    "bad_request": 400,
    "bad_frame": 400,
    "bad_session": 400,
    "bad_delta": 400,
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
}
"""HTTP status of each error code."""

_START, _TICK, _END, _CALL = map(int, (Kind.START, Kind.TICK, Kind.END, Kind.CALL))


class Stateless(Protocol):
    """A service without sessions."""

    async def tick(self, body: bytes) -> bytes:
        """Answer one call."""
        ...


class Batched(Stateless, Protocol):
    """A service without sessions that rather answers several calls together."""

    async def ticks(self, bodies: Sequence[bytes]) -> Sequence[bytes | ServiceError]:
        """Answer each of the calls that came in one turn of the event loop, in their order."""
        ...


Service = Callable[[str], ActorProtocol] | Stateless | Batched
"""Stateful: called with a session id, returns what answers it. Else an object with `tick`."""

Waits = Callable[[], None]
"""What a connection does when a request of it waits for the first time."""


class Owner(Protocol):
    """The connection that a request came on."""

    is_worker: bool
    """Whether another worker sent it on: it is not sent on to a third."""
    owns_sessions: bool
    """Whether sessions started on it end with it."""
    client: str
    """The client's address, by which its share of sessions is counted; empty: no share."""

    def session_ended(self, session: bytes) -> None:
        """Forget a session that was started on it."""
        ...


class Others(PageOwners, Protocol):
    """The other workers that share the port."""

    def claim(self, session: bytes) -> None:
        """Note that the session lives here. Raises ServiceError: it lives somewhere already."""
        ...

    def release(self, session: bytes) -> None:
        """Note that it does no longer."""
        ...

    async def forward(self, kind: int, session: bytes, body: bytes) -> bytes:
        """Let the owner answer. Raises ServiceError: also if there is none, or it died."""
        ...


class _Session:
    __slots__ = ("actor", "busy", "client", "last_used", "owner")

    def __init__(self, actor: ActorProtocol, owner: Owner | None, client: str) -> None:
        self.actor = actor
        self.owner = owner
        self.client = client
        self.busy = True
        self.last_used = 0.0


class Sessions:
    """Dispatches requests to the user's service and keeps the table of sessions.

    One request of a session runs at a time; a second one meanwhile is refused as `busy`. An
    exception in `start` or `end` removes the session; one in `tick` leaves it as it is.

    Args:
        service: see `Service`.
        limits: bounds.
        others: the workers that share the port with this one.
        pages: what answers requests of the kind PAGE.

    Raises:
        ConfigError: the service is neither a factory nor an object with an async `tick`.
    """

    def __init__(
        self,
        service: Service,
        limits: Limits,
        others: Others | None = None,
        pages: Pages | None = None,
    ) -> None:
        self._factory, self._stateless = _kind_of(service)
        self._ticks = getattr(self._stateless, "ticks", None)
        self._limits = limits
        self._max_requests = limits.max_requests
        self._others = others
        self._pages = pages
        self._public = public_paths(pages)
        self._table: dict[bytes, _Session] = {}
        self._shares = ClientShares(limits.max_sessions, limits.max_client_share)
        self._log = BoundedLog(logger)
        self._running = 0
        self._changed = asyncio.Event()
        self.draining = False
        """Whether no new session is taken; calls and open sessions go on."""
        self.ends_calls = False
        """Whether calls are refused too."""
        self.figures = Figures()

    def __len__(self) -> int:
        return len(self._table)

    @property
    def answers_calls_together(self) -> bool:
        """Whether calls are for `answer_calls`."""
        return self._ticks is not None

    @property
    def num_running(self) -> int:
        """Requests under way."""
        return self._running

    async def answer(
        self,
        kind: int,
        session: bytes,
        body: Any,
        owner: Owner | None = None,
        waits: Waits | None = None,
        received_s: float = 0.0,
    ) -> Any:
        """Answer one request: return a body or a ServiceError, never raise one.

        Args:
            kind: START, TICK, END or CALL of `frames.Kind`, or PAGE.
            session: its id in UTF-8; not used for CALL and PAGE.
            body: opaque bytes; for PAGE a `PageRequest`, answered by a `PageReply`.
            owner: the connection that it came on.
            waits: called when the answer waits for the first time, if it does.
            received_s: when the request was there, by `time.monotonic`.
        """
        figures = self.figures
        figures.requests[kind] += 1
        figures.bytes_in += len(body)
        self._running += 1
        try:
            if self._running > self._max_requests:
                raise ServiceError("overloaded", f"{self._running - 1} requests are under way")
            entry = self._table.get(session)
            if kind == _TICK and entry is not None and not entry.busy:
                entry.busy = True
                try:
                    work = entry.actor.tick(body)
                    try:  # `bounded`, written out: this is the path that every tick takes
                        wanted = work.send(None)
                    except StopIteration as done:
                        reply = done.value
                    else:
                        if waits is not None:
                            waits()
                        going = go_on(work, wanted, self._limits.tick_timeout_s)
                        del wanted  # as in `bounded`
                        reply = await going
                finally:
                    entry.busy = False
                    entry.last_used = time.monotonic()
            else:
                reply = await self._other(kind, session, body, entry, owner, waits)
            if type(reply) is not bytes and not isinstance(reply, PageReply):
                raise _not_bytes(reply)
            figures.bytes_out += len(reply)
            return reply
        except Exception as error:  # noqa: BLE001  the request's edge: it becomes a reply
            failure = self._failed(error, session)
            figures.count_error(failure.code)
            return failure
        finally:
            elapsed_s = time.monotonic() - received_s
            figures.latency[bisect_left(BUCKETS_S, elapsed_s)] += 1
            figures.latency_s += elapsed_s
            self._running -= 1
            if self.draining:
                self._changed.set()

    async def _other(
        self,
        kind: int,
        session: bytes,
        body: Any,
        entry: _Session | None,
        owner: Owner | None,
        waits: Waits | None,
    ) -> bytes | PageReply:
        """Answer all but the tick of a session that is here and free."""
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
            self.figures.forwarded += 1
            return await self._bounded(self._others.forward(kind, session, body), waits)
        if entry.busy:
            raise ServiceError("busy", f"session {_text(session)!r} has a request under way")
        entry.busy = True
        try:
            return await self._bounded(entry.actor.end(body), waits)
        finally:
            self._remove(session, entry)

    async def _call(self, body: bytes, waits: Waits | None) -> bytes:
        if self._stateless is None:
            raise ServiceError(
                "bad_request", "this service has sessions: a request needs a session and its kind"
            )
        if self.ends_calls:
            raise ServiceError("draining", "the server is shutting down")
        return await self._bounded(self._stateless.tick(body), waits)

    async def answer_calls(
        self, bodies: Sequence[bytes], received_s: float
    ) -> Sequence[bytes | ServiceError]:
        """Answer stateless calls together: each with a body or an error; never raises one.

        Args:
            bodies: opaque.
            received_s: when the first of them was there, by `time.monotonic`.
        """
        figures = self.figures
        count = len(bodies)
        figures.requests[_CALL] += count
        figures.bytes_in += sum(map(len, bodies))
        room = max(0, self._max_requests - self._running)
        self._running += count
        try:
            replies = await self._answer_calls(bodies[:room])
            if room < count:
                full = ServiceError("overloaded", f"{self._running - count} requests are under way")
                replies = [*replies, *[full] * (count - room)]
            for reply in replies:
                if type(reply) is bytes:
                    figures.bytes_out += len(reply)
                else:
                    assert isinstance(reply, ServiceError)
                    figures.count_error(reply.code)
            return replies
        finally:
            elapsed_s = time.monotonic() - received_s
            figures.latency[bisect_left(BUCKETS_S, elapsed_s)] += count
            figures.latency_s += elapsed_s * count
            self._running -= count
            if self.draining:
                self._changed.set()

    async def _answer_calls(self, bodies: Sequence[bytes]) -> Sequence[bytes | ServiceError]:
        assert self._ticks is not None
        try:
            if self.ends_calls:
                raise ServiceError("draining", "the server is shutting down")
            if not bodies:
                return []
            replies = list(await bounded(self._ticks(bodies), self._limits.tick_timeout_s))
            if len(replies) != len(bodies):
                raise ValueError(f"expected {len(bodies)} replies, got {len(replies)}")
            return [r if isinstance(r, bytes | ServiceError) else _not_bytes(r) for r in replies]
        except Exception as error:  # noqa: BLE001  the requests' edge: it becomes their reply
            return [self._failed(error, b"")] * len(bodies)

    async def _page(
        self, request: PageRequest, owner: Owner | None, waits: Waits | None
    ) -> PageReply:
        assert self._pages is not None
        if self.ends_calls and request.path.rstrip("/") not in self._public:
            raise ServiceError("draining", "the server is shutting down")
        request.is_draining = self.draining
        request.others = self._others
        request.is_forwarded = owner is not None and owner.is_worker
        reply: PageReply = await bounded(
            self._pages.answer(request), self._limits.tick_timeout_s, waits
        )
        return reply

    async def _start(
        self, session: bytes, body: bytes, owner: Owner | None, waits: Waits | None
    ) -> bytes:
        name = self._check_start(session)
        assert self._factory is not None
        client = owner.client if owner is not None else ""
        if not self._shares.take(client):
            raise ServiceError(
                "too_many_sessions",
                f"{self._shares.max_places} sessions of {client} are open, a client's share",
            )
        try:
            if self._others is not None:
                self._others.claim(session)
        except BaseException:
            self._shares.give(client)
            raise
        try:
            keeper = owner if owner is not None and owner.owns_sessions else None
            entry = _Session(self._factory(name), keeper, client)
        except BaseException:
            self._shares.give(client)
            self._release(session)
            raise
        self._table[session] = entry
        try:
            reply = await self._bounded(entry.actor.start(body), waits)
            if type(reply) is not bytes:
                raise _not_bytes(reply)
        except BaseException:
            self._remove(session, entry)
            raise
        entry.busy = False
        entry.last_used = time.monotonic()
        return reply

    def _check_start(self, session: bytes) -> str:
        name = self._check_session(session)
        if self.draining:
            raise ServiceError("draining", "the server is shutting down: no new sessions")
        if session in self._table:
            raise ServiceError("session_exists", f"session {name!r} was started already")
        if len(self._table) >= self._limits.max_sessions:
            raise ServiceError(
                "too_many_sessions", f"{len(self._table)} sessions are open, the limit"
            )
        return name

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

    def _bounded(
        self, work: Coroutine[Any, Any, bytes], waits: Waits | None
    ) -> Coroutine[Any, Any, bytes]:
        return bounded(work, self._limits.tick_timeout_s, waits)

    def _failed(self, error: Exception, session: bytes) -> ServiceError:
        """Log the user's exception and turn it into an error reply.

        The reply is an error of its own: one that was raised holds its frames, which hold the
        request's body until the garbage collector comes.
        """
        if isinstance(error, ServiceError):
            more = "..." if len(error.message) > _MAX_MESSAGE else ""
            return ServiceError(error.code, error.message[:_MAX_MESSAGE] + more)
        expected = isinstance(error, BrayError)
        text = str(error)[:_MAX_MESSAGE]
        self._log.error(f"session {_text(session)!r}: {text}", None if expected else error)
        return ServiceError("service_error", f"{type(error).__name__}: {text}")

    async def disconnect(self, owner: Owner) -> None:
        """Abort the sessions bound to a connection that is gone."""
        mine = [(s, e) for s, e in self._table.items() if e.owner is owner]
        await self._abort(mine, "disconnected")

    async def reap_idle(self) -> None:
        """Abort sessions that have been idle for too long; call it now and then."""
        self._log.flush()
        oldest = time.monotonic() - self._limits.idle_timeout_s
        idle = [(s, e) for s, e in self._table.items() if not e.busy and e.last_used < oldest]
        await self._abort(idle, "idle for too long")

    async def drain(self, timeout_s: float) -> None:
        """Refuse new sessions, let open ones and running requests end, then abort what is left."""
        self.draining = self.ends_calls = True
        try:
            async with asyncio.timeout(timeout_s):
                while self._running or self._table:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            logger.log(
                logging.WARNING if timeout_s else logging.DEBUG,  # nobody asked for a drain
                "drain: %d sessions and %d requests left after %g s",
                len(self._table),
                self._running,
                timeout_s,
            )
        await self._abort(list(self._table.items()), "the server is shutting down")

    def _remove(self, session: bytes, entry: _Session) -> bool:
        """Forget a session; False if that was done already, by a disconnect for instance."""
        if self._table.get(session) is not entry:
            return False
        del self._table[session]
        self._shares.give(entry.client)
        if entry.owner is not None:
            entry.owner.session_ended(session)
        self._release(session)
        return True

    def _release(self, session: bytes) -> None:
        if self._others is not None:
            self._others.release(session)
        if self.draining:
            self._changed.set()

    async def _abort(self, sessions: list[tuple[bytes, _Session]], reason: str) -> None:
        for session, entry in sessions:
            if not self._remove(session, entry):
                continue
            abort = getattr(entry.actor, "abort", None)  # a service may do without
            if abort is None:
                continue
            try:
                await bounded(abort(reason), self._limits.tick_timeout_s)
            except Exception as error:  # noqa: BLE001  the user's code, of a session that is gone
                self._log.error(f"session {_text(session)!r}: abort failed: {error}", error)


_MAX_MESSAGE = 2_000
"""Characters of an error's message that a client is sent."""


def _text(session: bytes) -> str:
    return session[:100].decode(errors="replace")


def _not_bytes(reply: object) -> ServiceError:
    return ServiceError(
        "service_error", f"the service answered {type(reply).__name__}, expected bytes"
    )


def _kind_of(service: Service) -> tuple[Callable[[str], ActorProtocol] | None, Stateless | None]:
    tick = getattr(service, "tick", None)
    if not inspect.isclass(service) and tick is not None:
        if not inspect.iscoroutinefunction(tick):
            raise ConfigError(f"service: expected an async tick, got {tick!r}")
        return None, service  # type: ignore[return-value]
    if callable(service):
        return service, None
    raise ConfigError(
        "service: expected a class or function that makes a session's actor, or an object with "
        f"an async tick, got {type(service).__name__}"
    )
