"""Distributing the requests of all connections over asyncio tasks.

One task serves the requests in the order in which they came, as long as none of them waits. A
request that waits keeps the task, and those behind it get a task each. So a tick that does not wait
costs no task of its own, one that waits delays nobody, and ticks that wait for a model reach it in
the same turn of the event loop, as one batch. Stateless calls go to the service together, if it
wants that, and so do requests for its pages.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, TypeAlias

from bray_server.sessions.direct_ticks import DirectTicks
from bray_server.sessions.grouped_requests import GroupedRequests
from bray_server.sessions.pages import PAGE
from bray_server.sessions.pending_request import PendingRequest
from bray_server.sessions.sessions import Sessions
from bray_server.wire.frames import Kind

logger = logging.getLogger(__name__)

_CALL = int(Kind.CALL)
_MAX_IN_A_TURN = 512
"""Number of requests that are answered without a pause, in a few milliseconds."""
_MAX_TOGETHER = 256
"""Number of calls that a service is given at once."""


Together: TypeAlias = Callable[[Sequence[Any], float], Awaitable[Sequence[Any]]]
"""Answers bodies that are of one kind, by the time when the first of them was whole."""


class Dispatcher:
    """Answers the requests that are put into it."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._grouped = GroupedRequests(sessions)
        self._queue: deque[PendingRequest] = deque()
        self._task: asyncio.Task[None] | None = None
        self._item: PendingRequest | None = None
        """The request that `_serve` is answering."""
        self._together: set[asyncio.Task[None]] = set()
        """Tasks that answer calls together; the set keeps them alive."""
        self.direct = DirectTicks(sessions, self._queue)
        """Answers ticks that do not need to be put here."""

    def stop(self) -> None:
        """End the task that stands ready for direct ticks."""
        self.direct.stop()

    def put(self, item: PendingRequest) -> None:
        """Answer a request soon."""
        self._queue.append(item)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._serve())

    async def _serve(self) -> None:
        """Answer requests until none is left or one of them has waited."""
        queue, answer, step_aside = self._queue, self._sessions.answer, self._step_aside
        me = self._task
        assert me is not None
        num_left = _MAX_IN_A_TURN
        while queue:
            num_left -= 1
            if not num_left:
                await asyncio.sleep(0)  # others of the event loop have a turn
                num_left = _MAX_IN_A_TURN
                continue
            item = queue.popleft()
            if item[1] == _CALL and self._sessions.answers_calls_together:
                self._put_calls(item)
                continue
            self._item = item
            caller = item[0]
            if caller.is_lost:
                continue
            if caller.is_blocked:
                caller.hold(item)
                continue
            if item[1] == PAGE and (group := self._grouped.page_group(item[3])) is not None:
                self._put_pages(item, group)
                continue
            try:
                reply = await answer(item[1], item[2], item[3], caller, step_aside, item[5])
                caller.reply(item, reply)
            except Exception:  # the task's edge: a fault of ours must not leave a client waiting
                logger.exception("connection closed by a fault")
                caller.abort()
            if self._task is not me:  # this one waited: others serve the queue
                caller.waiting.discard(me)
                return
        self._task = self._item = None

    def _put_calls(self, first: PendingRequest) -> None:
        """Answer all calls of the queue together; each connection's stay in their order."""
        self._put_together(first, lambda item: item[1] == _CALL, self._grouped.answer_calls)

    def _put_pages(self, first: PendingRequest, group: Hashable) -> None:
        """Answer all pages of a group that are in the queue together."""
        grouped = self._grouped

        def belongs(item: PendingRequest) -> bool:
            is_there = item[1] == PAGE and not item[0].is_lost
            return is_there and grouped.page_group(item[3]) == group

        self._put_together(first, belongs, grouped.answer_pages)

    def _put_together(
        self, first: PendingRequest, belongs: Callable[[PendingRequest], bool], answer: Together
    ) -> None:
        items, others = [first], list[PendingRequest]()
        for item in self._queue:
            (items if belongs(item) else others).append(item)
        self._queue.clear()
        self._queue.extend(others)
        create_task = asyncio.get_running_loop().create_task
        for start in range(0, len(items), _MAX_TOGETHER):
            work = self._serve_together(items[start : start + _MAX_TOGETHER], answer)
            task = create_task(work)
            self._together.add(task)
            task.add_done_callback(self._together.discard)

    async def _serve_together(self, items: list[PendingRequest], answer: Together) -> None:
        answered = []
        for item in items:
            if item[0].is_blocked:
                item[0].hold(item)
            elif not item[0].is_lost:
                answered.append(item)
        if not answered:
            return
        bodies = [item[3] for item in answered]
        replies = await answer(bodies, answered[0][5])
        for item, reply in zip(answered, replies, strict=True):
            if item[0].is_lost:
                continue
            try:
                item[0].reply(item, reply)
            except Exception:  # as above
                logger.exception("connection closed by a fault")
                item[0].abort()

    def _step_aside(self) -> None:
        """Serve the requests behind one that waits, each in a task of its own."""
        task = self._task
        assert task is not None
        assert self._item is not None
        self._item[0].waiting.add(task)
        self._task = self._item = None
        create_task = asyncio.get_running_loop().create_task
        while self._queue:
            create_task(self._serve_one(self._queue.popleft()))

    async def _serve_one(self, item: PendingRequest) -> None:
        """Answer one request, which probably waits, as the one before it did."""
        caller, kind, session, body, _, received_s = item
        task = asyncio.current_task()
        assert task is not None
        if caller.is_lost:
            return
        if caller.is_blocked:
            caller.hold(item)
            return
        caller.waiting.add(task)  # which also keeps it alive
        try:
            caller.reply(
                item, await self._sessions.answer(kind, session, body, caller, None, received_s)
            )
        except Exception:  # as above
            logger.exception("connection closed by a fault")
            caller.abort()
        finally:
            caller.waiting.discard(task)
