"""Answering requests together: stateless calls, and requests for pages that are of one group."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Hashable, Sequence, Sized
from typing import Any, TypeAlias, TypeVar

from bray_core.errors import ServiceError
from bray_core.json_body import JsonBody
from bray_server.sessions.deadlines import with_deadline
from bray_server.sessions.json_replies import answer_in_json
from bray_server.sessions.pages import PAGE, PageReply, PageRequest
from bray_server.sessions.services import not_bytes
from bray_server.sessions.sessions import Sessions
from bray_server.wire.frames import Kind

T = TypeVar("T", bound=Sized)
R = TypeVar("R", bound=Sized)
Work: TypeAlias = Callable[[Sequence[T]], Coroutine[Any, Any, Sequence[R | ServiceError]]]
"""Answers several requests, each with a reply or an error."""


class GroupedRequests:
    """Gives a service several requests at once, where it takes them so.

    Each is counted as any other, and those beyond the limit of requests under way are refused.

    Args:
        sessions: The service's, which count what is under way.
    """

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def answer_calls(
        self, bodies: Sequence[bytes], received_s: float
    ) -> Sequence[bytes | ServiceError]:
        """Answer stateless calls together, each with a body or an error; never raise one.

        Args:
            bodies: Bodies of the calls.
            received_s: Time when the first of them was whole, by `time.monotonic`.
        """
        return await self._together(int(Kind.CALL), bodies, self._calls, received_s)

    async def answer_pages(
        self, requests: Sequence[PageRequest], received_s: float
    ) -> Sequence[PageReply | ServiceError]:
        """Answer requests of one `page_group` together; never raise an error.

        Args:
            requests: The requests.
            received_s: Time when the first of them was whole, by `time.monotonic`.
        """
        return await self._together(PAGE, requests, self._pages, received_s)

    def page_group(self, request: PageRequest) -> Hashable | None:
        """Return what is equal for requests that may be answered together; None: this one alone."""
        sessions = self._sessions
        if sessions.grouped_pages is None or sessions.ends_calls:
            return None
        if sessions.num_running >= sessions.max_requests:
            return None  # it will be refused, unread
        return sessions.grouped_pages.group(request)

    async def _together(
        self,
        kind: int,
        bodies: Sequence[T],
        work: Work[T, R],
        received_s: float,
    ) -> Sequence[R | ServiceError]:
        """Count requests that are answered together."""
        sessions, metrics = self._sessions, self._sessions.metrics
        count = len(bodies)
        metrics.requests[kind] += count
        metrics.bytes_in += sum(map(len, bodies))
        room = max(0, sessions.max_requests - sessions.num_running)
        sessions.num_running += count
        try:
            replies = await self._answered(bodies[:room], work)
            if room < count:
                full = ServiceError(
                    "overloaded", f"{sessions.num_running - count} requests are under way"
                )
                replies = [*replies, *[full] * (count - room)]
            for reply in replies:
                if isinstance(reply, ServiceError):
                    metrics.count_error(reply.code)
                else:
                    metrics.bytes_out += len(reply)
            return replies
        finally:
            sessions.count_done(time.monotonic() - received_s, count)

    async def _answered(self, bodies: Sequence[T], work: Work[T, R]) -> Sequence[R | ServiceError]:
        """Return the replies; an error of the service is that of each request."""
        try:
            if self._sessions.ends_calls:
                raise ServiceError("draining", "the server is shutting down")
            if not bodies:
                return []
            timeout_s = self._sessions.tick_timeout_s
            replies: Sequence[R | ServiceError] = await with_deadline(work(bodies), timeout_s)
            if len(replies) != len(bodies):
                raise ValueError(f"expected {len(bodies)} replies, got {len(replies)}")
            return replies
        except (Exception, SystemExit) as error:  # noqa: BLE001  the requests' edge: replies
            return [self._sessions.refusal(error, b"")] * len(bodies)

    async def _pages(self, requests: Sequence[PageRequest]) -> Sequence[PageReply | ServiceError]:
        assert self._sessions.grouped_pages is not None
        return await self._sessions.grouped_pages.answer_together(requests)

    async def _calls(self, bodies: Sequence[bytes]) -> Sequence[bytes | ServiceError]:
        assert self._sessions.ticks is not None
        found = list(await self._sessions.ticks(bodies))
        replies = [r if isinstance(r, bytes | ServiceError) else not_bytes(r) for r in found]
        if JsonBody in map(type, bodies) and len(replies) == len(bodies):
            replies = await self._in_form_of(bodies, replies)
        return replies

    async def _in_form_of(
        self, bodies: Sequence[bytes], replies: Sequence[bytes | ServiceError]
    ) -> list[bytes | ServiceError]:
        """Return the replies to stateless calls, in JSON where the call was."""
        converted: list[bytes | ServiceError] = []
        for body, reply in zip(bodies, replies, strict=True):
            try:
                if isinstance(body, JsonBody) and isinstance(reply, bytes):
                    reply = await answer_in_json(body, reply)
                converted.append(reply)
            except ServiceError as error:
                converted.append(self._sessions.refusal(error, b""))
        return converted
