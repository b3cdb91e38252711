"""Coroutines wait without a thread, and lose nothing when they are cancelled."""

import asyncio
import threading

import pytest

from bray_buffer import Buffer, BufferConfig
from bray_core.errors import ClosedError, DeadlineError


@pytest.fixture
def queue(layout):
    return lambda **settings: Buffer(layout, BufferConfig(**{"batch_size": 1, **settings}))


async def waiting(buffer, count=1):
    while buffer._lock.num_waiting < count:  # noqa: ASYNC110  nothing tells of a waiter
        await asyncio.sleep(0)


async def test_a_push_from_a_thread_wakes_a_coroutine(queue, segment, numbers):
    buffer = queue(batch_size=2)
    popping = asyncio.create_task(buffer.pop_async())
    await waiting(buffer)
    before = threading.active_count()
    await asyncio.to_thread(buffer.push, segment(1), segment(2))
    assert numbers(await popping) == [1, 2]
    assert buffer._lock.num_waiting == 0
    assert threading.active_count() <= before + 1  # that of to_thread


async def test_a_hundred_waiters_need_no_threads(queue, segment, numbers):
    buffer = queue()
    before = threading.active_count()
    popping = [asyncio.create_task(buffer.pop_async()) for _ in range(100)]
    await waiting(buffer, 100)
    assert threading.active_count() == before
    assert await buffer.push_async(*map(segment, range(100))) == 100
    got = await asyncio.gather(*popping)
    assert sorted(n for batch in got for n in numbers(batch)) == list(range(100))


async def test_a_cancelled_waiter_leaves_the_batch(queue, segment, numbers):
    buffer = queue()
    for number in range(20):
        popping = asyncio.create_task(buffer.pop_async())
        await waiting(buffer)
        buffer.push(segment(number))  # it is ready, and cancelled before it can look
        popping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await popping
        assert numbers(await buffer.pop_async(0)) == [number]
    assert buffer._lock.num_waiting == 0


async def test_deadlines_and_closing(queue):
    buffer = queue()
    with pytest.raises(DeadlineError, match=r"no batch within 0.01 s: 0 of 1 segments"):
        await buffer.pop_async(0.01)
    popping = asyncio.create_task(buffer.pop_async())
    await waiting(buffer)
    await asyncio.to_thread(buffer.close)
    with pytest.raises(ClosedError, match="buffer: closed"):
        await popping
    with pytest.raises(ClosedError):
        await buffer.push_async()
    assert [batch async for batch in buffer] == []


async def test_a_waiting_push_goes_through_as_the_queue_empties(queue, segment, numbers):
    buffer = queue(capacity=2, when_full="block")
    assert await buffer.push_async(*map(segment, range(5))) == 2
    pushing = asyncio.create_task(buffer.push_async(*map(segment, range(2, 9)), wait=True))
    got = [numbers(await buffer.pop_async(30))[0] for _ in range(9)]
    assert (got, await pushing) == (list(range(9)), 7)
    message = r"no room in time \(0.01 s\): 2 of 3 segments"
    with pytest.raises(DeadlineError, match=message):
        await buffer.push_async(*map(segment, range(3)), wait=True, timeout_s=0.01)


async def test_a_waiter_whose_loop_is_gone_is_forgotten(queue, segment):
    buffer = queue()

    def leave_a_waiter_behind():
        loop = asyncio.new_event_loop()
        waiter = loop.create_task(buffer.pop_async())
        loop.run_until_complete(waiting(buffer))
        loop.close()
        waiter._log_destroy_pending = False
        return waiter

    waiter = await asyncio.to_thread(leave_a_waiter_behind)
    assert buffer._lock.num_waiting == 1
    buffer.push(segment(1))
    assert buffer._lock.num_waiting == 0
    waiter.get_coro().close()


async def test_iteration(queue, segment, numbers):
    buffer = queue()
    buffer.push(*map(segment, range(3)))
    got = []
    async for batch in buffer:
        got += numbers(batch)
        if len(got) == 3:
            buffer.close()
    assert got == [0, 1, 2]
