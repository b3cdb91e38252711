"""Sessions and the services behind them: what a request does, whichever way it came.

Errors are `ServiceError`s with one of these codes (HTTP status in brackets):

    bad_request [400]      unauthorized [401]     unknown_session [404]   not_found [404]
    deadline [408]         session_exists [409]   busy [409]              body_too_large [413]
    too_many_sessions [429]                       service_error [500]     draining [503]
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from bray_core.errors import BrayError, ConfigError, ServiceError
from bray_core.protocols import Actor
from bray_server.limits import Limits

logger = logging.getLogger(__name__)

STATUS = {
    "bad_request": 400,
    "bad_frame": 400,
    "bad_session": 400,
    "unauthorized": 401,
    "unknown_session": 404,
    "not_found": 404,
    "deadline": 408,
    "session_exists": 409,
    "busy": 409,
    "body_too_large": 413,
    "too_many_sessions": 429,
    "service_error": 500,
    "draining": 503,
}
"""HTTP status of each error code."""


class Stateless(Protocol):
    """A service without sessions."""

    async def tick(self, body: bytes) -> bytes:
        """Answer one call."""
        ...


Service = Callable[[str], Actor] | Stateless
"""Stateful: called with a session id, returns what answers it. Stateless: an object with `tick`."""


@dataclass(slots=True)
class _Session:
    actor: Actor
    owner: object
    last_used: float
    busy: bool = True


@dataclass(slots=True)
class Counters:
    """Figures of a server since it started."""

    requests: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    bytes_in: int = 0
    bytes_out: int = 0


class Sessions:
    """Dispatches requests to the user's service and keeps the table of sessions.

    One request of a session runs at a time; a second one meanwhile is refused as `busy`. An
    exception in `start` or `end` removes the session; one in `tick` leaves it as it is.

    Args:
        service: see `Service`.
        limits: bounds.

    Raises:
        ConfigError: the service is neither a factory nor an object with an async `tick`.
    """

    def __init__(self, service: Service, limits: Limits) -> None:
        self._factory, self._stateless = _kind_of(service)
        self._limits = limits
        self._table: dict[str, _Session] = {}
        self._running = 0
        self._quiet = asyncio.Event()
        self._quiet.set()
        self.draining = False
        self.counters = Counters()

    def __len__(self) -> int:
        return len(self._table)

    async def request(self, kind: str, session: str, body: bytes, owner: object = None) -> bytes:
        """Answer one request.

        Args:
            kind: `start`, `tick`, `end` or `call`.
            session: its id; not used for `call`.
            body: opaque.
            owner: the connection that a started session is bound to, or None.

        Raises:
            ServiceError: with a code of this module's table.
        """
        self.counters.requests += 1
        self.counters.bytes_in += len(body)
        self._running += 1
        self._quiet.clear()
        try:
            reply = await self._dispatch(kind, session, body, owner)
        except ServiceError as error:
            self.counters.errors[error.code] = self.counters.errors.get(error.code, 0) + 1
            raise
        finally:
            self._running -= 1
            if not self._running:
                self._quiet.set()
        self.counters.bytes_out += len(reply)
        return reply

    async def _dispatch(self, kind: str, session: str, body: bytes, owner: object) -> bytes:
        if len(body) > self._limits.max_body_bytes:
            raise ServiceError(
                "body_too_large",
                f"a body of {len(body)} bytes exceeds the limit of {self._limits.max_body_bytes}",
            )
        if kind == "tick":
            entry = self._enter(session)
            try:
                return await self._bounded(entry.actor.tick(body), session)
            finally:
                self._leave(entry)
        if kind == "start":
            return await self._start(session, body, owner)
        if kind == "end":
            return await self._end(session, body)
        return await self._call(body)

    async def _call(self, body: bytes) -> bytes:
        if self._stateless is None:
            raise ServiceError(
                "bad_request", "this service has sessions: a request needs a session and its kind"
            )
        if self.draining:
            raise ServiceError("draining", "the server is shutting down")
        return await self._bounded(self._stateless.tick(body), "call")

    async def _start(self, session: str, body: bytes, owner: object) -> bytes:
        self._check_start(session)
        assert self._factory is not None
        try:
            actor = self._factory(session)
        except Exception as error:
            raise self._failed(error, session) from error
        entry = _Session(actor, owner, asyncio.get_running_loop().time())
        self._table[session] = entry
        try:
            reply = await self._bounded(actor.start(body), session)
        except BaseException:
            self._table.pop(session, None)
            raise
        self._leave(entry)
        return reply

    def _check_start(self, session: str) -> None:
        if self._factory is None:
            raise ServiceError("bad_request", "this service has no sessions: call it without one")
        if self.draining:
            raise ServiceError("draining", "the server is shutting down: no new sessions")
        size = len(session.encode())
        if not 0 < size <= self._limits.max_session_bytes:
            raise ServiceError(
                "bad_session",
                f"expected a session id of 1 to {self._limits.max_session_bytes} bytes, got {size}",
            )
        if session in self._table:
            raise ServiceError("session_exists", f"session {session!r} was started already")
        if len(self._table) >= self._limits.max_sessions:
            raise ServiceError(
                "too_many_sessions", f"{len(self._table)} sessions are open, the limit"
            )

    async def _end(self, session: str, body: bytes) -> bytes:
        entry = self._enter(session)
        try:
            return await self._bounded(entry.actor.end(body), session)
        finally:
            if self._table.get(session) is entry:
                del self._table[session]

    def _enter(self, session: str) -> _Session:
        entry = self._table.get(session)
        if entry is None:
            raise ServiceError("unknown_session", f"session {session[:100]!r} is not open here")
        if entry.busy:
            raise ServiceError("busy", f"session {session!r} has a request under way")
        entry.busy = True
        return entry

    def _leave(self, entry: _Session) -> None:
        entry.busy = False
        entry.last_used = asyncio.get_running_loop().time()

    async def _bounded(self, work: Any, session: str) -> bytes:
        """Await the user's coroutine under the deadline; its errors become ServiceErrors."""
        try:
            async with asyncio.timeout(self._limits.tick_timeout_s) as deadline:
                reply = await work
        except TimeoutError as error:
            if not deadline.expired():
                raise self._failed(error, session) from error
            raise ServiceError(
                "deadline", f"no answer within {self._limits.tick_timeout_s:g} s"
            ) from None
        except ServiceError:
            raise
        except Exception as error:
            raise self._failed(error, session) from error
        if not isinstance(reply, bytes):
            raise ServiceError(
                "service_error", f"the service answered {type(reply).__name__}, expected bytes"
            )
        return reply

    def _failed(self, error: Exception, session: str) -> ServiceError:
        """The request's edge: log the user's exception and turn it into an error reply."""
        expected = isinstance(error, BrayError)
        logger.error("session %s: %s", session, error, exc_info=None if expected else error)
        return ServiceError("service_error", f"{type(error).__name__}: {error}")

    async def disconnect(self, owner: object) -> None:
        """Abort the sessions bound to a connection that is gone."""
        await self._abort([s for s, e in self._table.items() if e.owner is owner], "disconnected")

    async def reap_idle(self) -> None:
        """Abort sessions that have been idle for too long; call it now and then."""
        oldest = asyncio.get_running_loop().time() - self._limits.idle_timeout_s
        idle = [s for s, e in self._table.items() if not e.busy and e.last_used < oldest]
        await self._abort(idle, "idle for too long")

    async def drain(self, timeout_s: float) -> None:
        """Refuse new sessions, let running requests finish, then abort what is left."""
        self.draining = True
        try:
            await asyncio.wait_for(self._quiet.wait(), timeout_s)
        except TimeoutError:
            logger.warning("drain: %d requests still run after %g s", self._running, timeout_s)
        await self._abort(list(self._table), "the server is shutting down")

    async def _abort(self, sessions: list[str], reason: str) -> None:
        for session in sessions:
            entry = self._table.pop(session, None)
            if entry is None:
                continue
            abort = getattr(entry.actor, "abort", None)  # a service may do without
            if abort is None:
                continue
            try:
                await abort(reason)
            except Exception:
                logger.exception("session %s: abort failed", session)


def _kind_of(service: Service) -> tuple[Callable[[str], Actor] | None, Stateless | None]:
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
