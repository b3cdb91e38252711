"""Ticks that are answered where their request ended, without a task."""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Collection
from contextvars import copy_context
from functools import partial
from typing import Any

from bray_core.errors import ServiceError
from bray_server.sessions.deadlines import cancelled, resume_with_deadline
from bray_server.sessions.pending_request import PendingRequest
from bray_server.sessions.server_metrics import BUCKETS_S
from bray_server.sessions.services import not_bytes
from bray_server.sessions.session_table import OpenSession
from bray_server.sessions.sessions import Sessions
from bray_server.sessions.spare_task import SpareTask
from bray_server.wire.frames import Kind

logger = logging.getLogger(__name__)

_TICK = int(Kind.TICK)
_MAX_IN_A_TURN = 512
"""Number of ticks that are answered before others of the event loop have a turn."""


_MOST_TO_QUEUE = 16
"""Number of a session's ticks that are not tried here after one that waited: they wait, too."""


class BegunTick:
    """A tick that waits: its answer comes later.

    Args:
        go_on: Lets it go on; takes the request.
    """

    __slots__ = ("go_on",)

    def __init__(self, go_on: Callable[[PendingRequest], None]) -> None:
        self.go_on = go_on
        """Call it with the request, whose caller then gets the reply."""


class DirectTicks:
    """Answers a tick, or a stateless call, at once: most of them never wait.

    Args:
        sessions: What answers requests.
        queue: Requests that wait for their turn: while there are some nobody is answered here.
    """

    def __init__(self, sessions: Sessions, queue: Collection[object]) -> None:
        self._sessions = sessions
        self._queue = queue
        self._spare: SpareTask | None = None
        self._context = copy_context()
        self._num_left = _MAX_IN_A_TURN

    def answer(
        self, kind: int, session: bytes, body: bytes, received_s: float
    ) -> bytes | ServiceError | BegunTick | None:
        """Answer a request; None: nothing was done, another way must be taken.

        Args:
            kind: TICK or CALL of `frames.Kind`.
            session: Id of the session in UTF-8; not used for CALL.
            body: Body of the request.
            received_s: Time when the request was whole, by `time.monotonic`.
        """
        spare, sessions = self._spare, self._sessions
        entry = sessions.entries.get(session) if kind == _TICK else sessions.calls
        if (
            entry is None
            or entry.busy
            or self._queue
            or not self._num_left
            or sessions.draining
            or sessions.num_running >= sessions.max_requests
        ):
            return None
        if entry.num_to_queue:
            entry.num_to_queue -= 1
            return None
        if spare is None or not spare.enter():
            self._prepare()
            return None
        metrics = sessions.metrics
        entry.busy = True
        sessions.num_running += 1
        metrics.requests[kind] += 1
        metrics.bytes_in += len(body)
        try:
            reply = spare.context.run(spare.work.send, (entry.actor.tick, body))
            if spare.waits:
                self._spare = None
                self._prepare()
                entry.num_to_queue = _MOST_TO_QUEUE
                return BegunTick(partial(self._go_on, spare, entry, received_s, reply))
        except asyncio.CancelledError:
            spare.renew()
            return sessions.fail(entry, session, cancelled(), received_s)
        except (Exception, SystemExit) as error:  # noqa: BLE001  the request's edge: a reply
            spare.renew()
            return sessions.fail(entry, session, error, received_s)
        except BaseException:
            spare.renew()
            sessions.leave(entry, received_s)
            raise
        finally:
            spare.leave()
            self._num_left -= 1
            if not self._num_left or spare.context != self._context:
                self._clean_up(spare)
        if type(reply) is not bytes:
            return sessions.fail(entry, session, not_bytes(reply), received_s)
        entry.busy = False  # as in `Sessions.succeed`, written out
        entry.last_used = now = time.monotonic()
        elapsed_s = now - received_s
        metrics.bytes_out += len(reply)
        metrics.latency[bisect_left(BUCKETS_S, elapsed_s)] += 1
        metrics.latency_s += elapsed_s
        sessions.num_running -= 1
        if sessions.draining:
            sessions.note_change()
        return reply

    def stop(self) -> None:
        """End the task that stood ready."""
        if self._spare is not None:
            self._spare.dismiss()
            self._spare = None

    def _prepare(self) -> None:
        """Have a task stand ready in the event loop's next turn."""
        if self._spare is None or self._spare.task.done():
            self._spare = SpareTask(self._context.copy())

    def _clean_up(self, spare: SpareTask) -> None:
        """See to it that others have a turn, and that a tick's context variables are its own."""
        if not self._num_left:  # counted over many turns, so that most need no callback
            asyncio.get_running_loop().call_soon(self._refill)
        if spare is self._spare and spare.context != self._context:
            spare.dismiss()
            self._spare = None

    def _refill(self) -> None:
        self._num_left = _MAX_IN_A_TURN

    def _go_on(
        self,
        spare: SpareTask,
        entry: OpenSession,
        received_s: float,
        wanted: Any,
        item: PendingRequest,
    ) -> None:
        """Let a tick that waits go on in the task that it was begun in."""
        item[0].waiting.add(spare.task)
        spare.go_on(partial(self._rest, spare, entry, received_s, wanted, item))

    async def _rest(
        self,
        spare: SpareTask,
        entry: OpenSession,
        received_s: float,
        wanted: Any,
        item: PendingRequest,
    ) -> None:
        """Answer a tick that waits, once it is done."""
        caller, _, session, *_ = item
        going: Awaitable[bytes] = resume_with_deadline(
            spare.work, wanted, self._sessions.tick_timeout_s
        )
        del wanted  # it would hold an error, which holds this frame and so the request
        try:
            caller.reply(item, await self._sessions.finish(entry, session, going, received_s))
        except Exception:  # the task's edge: a fault of ours must not leave a client waiting
            logger.exception("connection closed by a fault")
            caller.abort()
        finally:
            caller.waiting.discard(spare.task)
