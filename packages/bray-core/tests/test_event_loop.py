from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from concurrent.futures import Future
from typing import Any

import pytest

from bray_core.errors import ClosedError, DeadlineError
from bray_core.process.event_loop import EventLoopThread


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


def test_what_was_submitted_while_it_stops_gets_an_answer() -> None:
    for _ in range(20):
        loop = EventLoopThread("test")
        futures: list[Future[None]] = []
        started = threading.Event()

        def submit(loop: EventLoopThread, futures: list[Any], started: threading.Event) -> None:
            try:
                while True:
                    futures.append(loop.submit(forever()))
                    started.set()
            except ClosedError:
                pass

        thread = threading.Thread(target=submit, args=(loop, futures, started))
        thread.start()
        assert started.wait(5)
        loop.stop()
        thread.join(5)
        assert all(future.cancelled() for future in futures)


def test_stop_from_its_own_loop_ends_it() -> None:
    loop = EventLoopThread("test")

    async def stop() -> int:
        loop.stop()
        return 1

    assert loop.run(stop(), timeout_s=5) == 1
    loop.stop()
    assert loop.loop.is_closed()


def test_tasks_that_cancelled_ones_start_are_cancelled_too() -> None:
    loop = EventLoopThread("test")
    children: list[asyncio.Task[None]] = []

    async def parent() -> None:
        try:
            await forever()
        finally:
            children.append(asyncio.ensure_future(forever()))

    loop.submit(parent())
    loop.run(answer(0))
    loop.stop()
    assert [child.cancelled() for child in children] == [True]


def test_a_task_that_refuses_does_not_keep_stop_waiting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("bray_core.process.event_loop._STOP_TIMEOUT_S", 0.2)
    loop = EventLoopThread("test")
    over = threading.Event()

    async def refuse() -> None:
        # Left here for good: asyncio would tell of it in whichever test collects it.
        asyncio.current_task()._log_destroy_pending = False  # type: ignore[union-attr]
        while not over.is_set():
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                pass

    future = loop.submit(refuse())
    loop.run(answer(0))
    with caplog.at_level(logging.WARNING):
        loop.stop()
    over.set()
    assert "refuse to be cancelled" in caplog.text
    assert not future.done()


def test_a_callback_that_blocks_does_not_keep_stop_waiting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("bray_core.process.event_loop._STOP_TIMEOUT_S", 0.1)
    loop = EventLoopThread("test")
    entered, leave = threading.Event(), threading.Event()

    async def block() -> None:
        entered.set()
        leave.wait(30)

    loop.submit(block())
    assert entered.wait(5)
    with caplog.at_level(logging.WARNING):
        loop.stop()
    assert "a callback blocks it" in caplog.text
    leave.set()
    loop.stop()
    assert loop.loop.is_closed()


def test_a_loop_that_nobody_stopped_ends_before_the_interpreter_does() -> None:
    program = """
import asyncio
from bray_core.process.event_loop import EventLoopThread

async def wait(begun):
    try:
        begun.set()
        await asyncio.sleep(60)
    finally:
        print("cancelled")

async def begin():
    begun = asyncio.Event()
    task = asyncio.create_task(wait(begun))
    await begun.wait()
    return task

task = EventLoopThread("forgotten").run(begin())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, b"cancelled\n")
