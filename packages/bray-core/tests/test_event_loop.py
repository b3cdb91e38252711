from __future__ import annotations

import asyncio
import threading

import pytest

from bray_core.errors import ClosedError, DeadlineError
from bray_core.event_loop import EventLoopThread


async def answer(value: int) -> int:
    await asyncio.sleep(0)
    return value


async def forever() -> None:
    await asyncio.Event().wait()


def test_run_and_submit() -> None:
    loop = EventLoopThread("test")
    assert loop.run(answer(3)) == 3
    assert loop.submit(answer(4)).result(5) == 4
    loop.stop()
    loop.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "test"]


def test_errors_come_back() -> None:
    async def fail() -> None:
        raise ValueError("no")

    loop = EventLoopThread("test")
    with pytest.raises(ValueError, match="no"):
        loop.run(fail())
    loop.stop()


def test_a_deadline_cancels() -> None:
    cancelled = threading.Event()

    async def work() -> None:
        try:
            await forever()
        finally:
            cancelled.set()

    loop = EventLoopThread("test")
    with pytest.raises(DeadlineError, match=r"no result within 0\.05 s"):
        loop.run(work(), timeout_s=0.05)
    assert cancelled.wait(5)
    loop.stop()


def test_stop_cancels_what_runs_and_refuses_the_rest() -> None:
    loop = EventLoopThread("test")
    future = loop.submit(forever())
    loop.stop()
    assert future.cancelled()
    with pytest.raises(ClosedError, match="already stopped"):
        loop.run(answer(1))


def test_run_on_its_own_loop_would_wait_for_itself() -> None:
    loop = EventLoopThread("test")

    async def nested_run() -> int:
        return loop.run(answer(1))

    with pytest.raises(RuntimeError, match="await instead"):
        loop.run(nested_run())
    loop.stop()
