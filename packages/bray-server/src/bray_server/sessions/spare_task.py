"""A task that stands ready to go on with work whose first step was taken outside of any task."""

from __future__ import annotations

import asyncio
import types
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any

from bray_server.sessions.deadlines import stepped

Rest = Callable[[], Coroutine[Any, Any, None]]
"""Makes what is left of some work."""


class SpareTask:
    """A task in whose name coroutines may be begun from a callback of the event loop.

    What a coroutine does before it first waits can run without a task of its own, if it looks as if
    it had one: `asyncio.current_task` is the spare one, and so are its context variables. If the
    coroutine waits, it goes on in this very task, so that an `asyncio.timeout` or `TaskGroup` that
    it has entered meanwhile cancels what it should. Then another spare task is needed.

    One generator takes the first steps of all: a coroutine tells its caller by a StopIteration what
    it returns, which costs as much as the rest of a short one.

    Args:
        context: Context variables of the work; only this task may use it.
    """

    def __init__(self, context: Context) -> None:
        self._loop = asyncio.get_running_loop()
        self.context = context
        """Context variables of the work."""
        self.waits = False
        """Whether the work that was begun last waits, for what `work` has yielded."""
        self._goes_on = False
        self.renew()
        self._wake: asyncio.Future[None] | None = None
        self._rest: Rest | None = None
        self.task = self._loop.create_task(self._run(), context=context)
        """The task."""

    def enter(self) -> bool:
        """Begin to act as this task; False: it does not stand ready.

        It does not before the event loop's next turn, nor while another task runs. Who has entered
        calls functions by `context.run`, and then `leave`.
        """
        if self._wake is None or self._wake.done():
            return False
        try:
            _enter_task(self._loop, self.task)
        except RuntimeError:  # inside of a task
            return False
        return True

    def leave(self) -> None:
        """Act as this task no more."""
        _leave_task(self._loop, self.task)

    def renew(self) -> None:
        """Stand ready again after work that failed."""
        self.work = self._work()
        """Takes the first steps of work in `context`: see `_work`."""
        self.work.send(None)  # to where it waits for some

    @types.coroutine
    def _work(self) -> Generator[Any, Any, Any]:
        """Do one piece of work after the other: what makes it, and what that is called with, are
        sent here. A result is yielded, or returned if its work has waited."""
        result: Any = None
        while not self._goes_on:
            self.waits = False
            make, given = yield result
            self.waits = True
            work: Any = make(given)
            is_plain = type(work) is types.CoroutineType
            result = yield from (work if is_plain else stepped(work))
            make = given = work = None  # it keeps nothing of a session that is over
        return result

    def go_on(self, rest: Rest) -> None:
        """Let the task run the rest of what was begun in its name.

        Args:
            rest: Makes the rest; also called where the task was cancelled meanwhile, so that the
                work can see to it.
        """
        assert self._wake is not None
        self._rest = rest
        self._goes_on = True
        if not self._wake.done():
            self._wake.set_result(None)

    def dismiss(self) -> None:
        """End the task, which is not needed."""
        self.task.cancel()

    async def _run(self) -> None:
        self._wake = self._loop.create_future()
        try:
            await self._wake
        except asyncio.CancelledError:
            if self._rest is None:
                raise
            self.task.uncancel()  # the work is what was cancelled: it learns it where it waits
            self.task.cancel()
        rest, self._rest = self._rest, None
        assert rest is not None
        await rest()
