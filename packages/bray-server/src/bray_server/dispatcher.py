"""Who serves the requests of all connections.

One task serves them in the order in which they came, as long as none of them waits. One that waits
keeps its task to itself, and another task serves those behind it. So a tick that needs not wait
costs no task of its own, and one that does delays nobody.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any, Protocol, TypeAlias

from bray_core.errors import ServiceError
from bray_server.sessions import Owner, Sessions

logger = logging.getLogger(__name__)


class Caller(Owner, Protocol):
    """A connection, as it is seen from here."""

    is_blocked: bool
    is_lost: bool
    waiting: set[asyncio.Task[None]]

    def reply(self, item: Item, reply: bytes | ServiceError) -> None:
        """Send the answer of one of its requests."""
        ...

    def hold(self, item: Item) -> None:
        """Keep a request until its client reads its replies again."""
        ...

    def abort(self) -> None:
        """Close the connection at once."""
        ...


Item: TypeAlias = tuple[Caller, int, bytes, bytes, Any, float]
"""Caller, kind, session, body, what the caller needs for the reply, time received."""


class Dispatcher:
    """Answers what is put into it."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._queue: deque[Item] = deque()
        self._task: asyncio.Task[None] | None = None
        self._caller: Caller | None = None

    def put(self, item: Item) -> None:
        """Answer a request soon."""
        self._queue.append(item)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._serve())

    async def _serve(self) -> None:
        """Answer requests until none is left or one of them has waited."""
        queue, answer, step_aside = self._queue, self._sessions.answer, self._step_aside
        me = self._task
        assert me is not None
        while queue:
            item = queue.popleft()
            caller = item[0]
            if caller.is_lost:
                continue
            if caller.is_blocked:
                caller.hold(item)
                continue
            self._caller = caller
            try:
                reply = await answer(item[1], item[2], item[3], caller, step_aside, item[5])
                caller.reply(item, reply)
            except Exception:  # the task's edge: a fault of ours must not leave a client waiting
                logger.exception("connection closed by a fault")
                caller.abort()
            if self._task is not me:  # this one waited: another serves the queue
                caller.waiting.discard(me)
                return
        self._task = None

    def _step_aside(self) -> None:
        """The request at hand waits: leave the queue to another task."""
        task = self._task
        assert task is not None
        assert self._caller is not None
        self._caller.waiting.add(task)
        self._task = asyncio.get_running_loop().create_task(self._serve()) if self._queue else None
