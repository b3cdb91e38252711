"""Ticks that are answered where their request ended, without a task."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from contextvars import copy_context
from functools import partial
from typing import Any

from bray_core.errors import ServiceError
from bray_server.sessions.deadlines import cancelled, resume_with_deadline
from bray_server.sessions.pending_request import PendingRequest
from bray_server.sessions.session_table import OpenSession
from bray_server.sessions.sessions import Sessions
from bray_server.sessions.spare_task import SpareTask

logger = logging.getLogger(__name__)

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
        entry = sessions.free(kind, session)
        if entry is None or self._queue or not self._num_left:
            return None
        if entry.num_to_queue:
            entry.num_to_queue -= 1
            return None
        if spare is None or not spare.enter():
            self._prepare()
            return None
        sessions.begin(entry, kind, len(body))
        try:
            begun = spare.context.run(_first_step, entry.actor.tick, body)
        except StopIteration as done:
            reply = done.value
        except asyncio.CancelledError:
            return sessions.fail(entry, session, cancelled(), received_s)
        except Exception as error:  # noqa: BLE001  the request's edge: it becomes a reply
            return sessions.fail(entry, session, error, received_s)
        except BaseException:
            sessions.leave(entry, received_s)
            raise
        else:
            self._spare = None
            self._prepare()
            entry.num_to_queue = _MOST_TO_QUEUE
            return BegunTick(partial(self._go_on, spare, entry, received_s, begun))
        finally:
            spare.leave()
            self._num_left -= 1
            if not self._num_left or spare.context != self._context:
                self._clean_up(spare)
        return sessions.succeed(entry, session, reply, received_s)

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
        begun: tuple[Coroutine[Any, Any, bytes], Any],
        item: PendingRequest,
    ) -> None:
        """Let a tick that waits go on in the task that it was begun in."""
        item[0].waiting.add(spare.task)
        spare.go_on(partial(self._rest, spare.task, entry, received_s, begun, item))

    async def _rest(
        self,
        task: asyncio.Task[None],
        entry: OpenSession,
        received_s: float,
        begun: tuple[Coroutine[Any, Any, bytes], Any],
        item: PendingRequest,
    ) -> None:
        """Answer a tick that waits, once it is done."""
        caller, _, session, *_ = item
        going = resume_with_deadline(*begun, self._sessions.tick_timeout_s)
        del begun  # it would hold an error, which holds this frame and so the request
        try:
            caller.reply(item, await self._sessions.finish(entry, session, going, received_s))
        except Exception:  # the task's edge: a fault of ours must not leave a client waiting
            logger.exception("connection closed by a fault")
            caller.abort()
        finally:
            caller.waiting.discard(task)


def _first_step(
    tick: Callable[[bytes], Coroutine[Any, Any, bytes]], body: bytes
) -> tuple[Coroutine[Any, Any, bytes], Any]:
    """Return a tick and what it waits for. Raises StopIteration: with its reply."""
    work = tick(body)
    return work, work.send(None)
