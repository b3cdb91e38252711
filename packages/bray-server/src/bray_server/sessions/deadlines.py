"""Running a user's coroutine under a deadline that costs nothing until it waits."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeAlias, TypeVar

from bray_core.errors import ServiceError

T = TypeVar("T")
Work: TypeAlias = Coroutine[Any, Any, T] | Generator[Any, Any, T]


async def with_deadline(
    work: Coroutine[Any, Any, T], timeout_s: float, waits: Callable[[], None] | None = None
) -> T:
    """Await `work` in the current task; the deadline is armed when it first waits.

    Work that never waits cannot be interrupted, so it needs no deadline: an `asyncio.timeout`
    around every tick would cost more than all else that the server does for it.

    Args:
        work: The coroutine.
        timeout_s: Seconds from its first wait on.
        waits: Called before its first wait.

    Raises:
        ServiceError: `deadline`; `service_error`: it was cancelled, but not by who awaits it.
    """
    try:
        wanted = work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    except asyncio.CancelledError:
        raise cancelled() from None
    if waits is not None:
        waits()
    going = resume_with_deadline(work, wanted, timeout_s)
    del wanted  # it would hold its error, which holds this frame and so the request
    return await going


@types.coroutine
def resume_with_deadline(work: Work[T], wanted: Any, timeout_s: float) -> Generator[Any, Any, T]:
    """Go on with `work` at its first wait, for `wanted`; errors as in `with_deadline`."""
    deadline = _Deadline(timeout_s)
    going = _resume(work, wanted)
    del wanted  # as in `with_deadline`
    try:
        return (yield from going)
    except asyncio.CancelledError:
        if deadline.cancel():
            raise ServiceError("deadline", f"no answer within {timeout_s:g} s") from None
        if not deadline.task.cancelling():
            raise cancelled() from None
        raise
    finally:
        deadline.cancel()


@types.coroutine
def stepped(work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """Await what is stepped through as a coroutine is, but may be none of Python's own."""
    try:
        wanted = work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    going = _resume(work, wanted)
    del wanted
    return (yield from going)


def _resume(work: Work[T], wanted: Any) -> Generator[Any, Any, T]:
    try:
        while True:
            try:
                value = yield wanted
            except GeneratorExit:
                work.close()
                raise
            except BaseException as error:  # noqa: BLE001  it belongs to the coroutine inside
                wanted = None  # as in `with_deadline`
                wanted = work.throw(error)
            else:
                wanted = work.send(value)
    except StopIteration as done:
        result: T = done.value
        return result


def cancelled() -> ServiceError:
    """Return the error for a service that failed because something it awaits was cancelled.

    Its own request is not: were the error passed on as it is, the client would get no answer.
    """
    return ServiceError("service_error", "CancelledError: what the service awaits was cancelled")


class _Deadline:
    """Cancels the current task once, after a time."""

    def __init__(self, timeout_s: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        self._has_struck = False
        loop = task.get_loop()
        self._timer: asyncio.TimerHandle | None = loop.call_later(timeout_s, self._strike)

    def _strike(self) -> None:
        self._timer = None
        self._has_struck = True
        self.task.cancel()

    def cancel(self) -> bool:
        """Disarm the deadline; if it has struck, take its cancellation back and return True."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        struck, self._has_struck = self._has_struck, False
        if struck:
            self.task.uncancel()
        return struck
