"""The protocol over HTTP/1.1: `POST /step`, and pages for health and metrics."""

from __future__ import annotations

import json

from aiohttp import web

from bray_core.errors import ServiceError
from bray_server.auth import Tokens
from bray_server.limits import Limits
from bray_server.sessions import STATUS, Sessions

_KINDS = {"start": "start", "tick": "tick", "end": "end", "stop": "end"}


def make_runner(sessions: Sessions, limits: Limits, tokens: Tokens) -> web.AppRunner:
    """Return aiohttp's runner of the routes."""
    pages = _Pages(sessions, limits, tokens)
    application = web.Application(client_max_size=limits.max_body_bytes + 1)
    application.router.add_post("/step", pages.step)
    application.router.add_get("/health", pages.health)
    application.router.add_get("/ready", pages.ready)
    application.router.add_get("/metrics", pages.metrics)
    return web.AppRunner(application, access_log=None, handler_cancellation=True)


class _Pages:
    def __init__(self, sessions: Sessions, limits: Limits, tokens: Tokens) -> None:
        self._sessions = sessions
        self._limits = limits
        self._tokens = tokens

    async def step(self, request: web.Request) -> web.Response:
        try:
            return web.Response(body=await self._step(request))
        except ServiceError as error:
            return _error(error)

    async def _step(self, request: web.Request) -> bytes:
        if not self._tokens.accept_header(request.headers.get("Authorization", "")):
            raise ServiceError("unauthorized", "expected 'Authorization: Bearer TOKEN'")
        given = request.headers.get("step_kind")
        kind = "call" if given is None else _KINDS.get(given.lower())
        if kind is None:
            raise ServiceError(
                "bad_request", f"step_kind: expected start, tick, end or stop, got {given!r}"
            )
        session = request.headers.get("session", "")
        if kind != "call" and not session:
            raise ServiceError("bad_session", f"step_kind {given} needs the header 'session'")
        try:
            body = await request.read()
        except web.HTTPRequestEntityTooLarge:
            raise ServiceError(
                "body_too_large", f"the body exceeds the limit of {self._limits.max_body_bytes}"
            ) from None
        return await self._sessions.request(kind, session, body)

    async def health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(self, _: web.Request) -> web.Response:
        if self._sessions.draining:
            return _error(ServiceError("draining", "the server is shutting down"))
        return web.Response(text="ready\n")

    async def metrics(self, _: web.Request) -> web.Response:
        counters = self._sessions.counters
        lines = [
            "# TYPE bray_requests_total counter",
            f"bray_requests_total {counters.requests}",
            "# TYPE bray_errors_total counter",
            *(f'bray_errors_total{{code="{c}"}} {n}' for c, n in sorted(counters.errors.items())),
            "# TYPE bray_received_bytes_total counter",
            f"bray_received_bytes_total {counters.bytes_in}",
            "# TYPE bray_sent_bytes_total counter",
            f"bray_sent_bytes_total {counters.bytes_out}",
            "# TYPE bray_sessions gauge",
            f"bray_sessions {len(self._sessions)}",
        ]
        return web.Response(
            text="\n".join(lines) + "\n", headers={"Content-Type": "text/plain; version=0.0.4"}
        )


def _error(error: ServiceError) -> web.Response:
    text = json.dumps({"error": {"code": error.code, "message": error.message}})
    headers = {"Retry-After": "1"} if error.code in ("too_many_sessions", "draining") else {}
    return web.Response(
        status=STATUS.get(error.code, 500),
        text=text,
        content_type="application/json",
        headers=headers,
    )
