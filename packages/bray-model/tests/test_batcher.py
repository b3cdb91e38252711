import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bray_core.errors import CapacityError, ClosedError, DeadlineError
from bray_core.protocols import Answer
from bray_model import ModelConfig
from bray_model.batching import batcher as batcher_module
from bray_model.batching.batcher import Batcher
from bray_model.batching.executor import BatchRequest

LONG_US = 60_000_000


class Engine:
    """Answers each request with itself; records batches; can be held and can fail."""

    def __init__(self):
        self.batches = []
        self.free = threading.Event()
        self.free.set()
        self.started = threading.Event()
        self.error = None

    def __call__(self, requests):
        self.started.set()
        assert self.free.wait(10)
        self.batches.append([request.leaves[0] for request in requests])
        if self.error is not None:
            raise self.error
        return [Answer(request.leaves[0], len(self.batches)) for request in requests]


@pytest.fixture
def engine():
    return Engine()


@pytest.fixture
def pool():
    with ThreadPoolExecutor(1) as pool:
        yield pool


def make(engine, pool, **settings):
    loop = asyncio.get_running_loop()
    config = ModelConfig(**{"inline_below_us": 0, **settings})  # the engine waits for the loop
    return Batcher(loop, engine, config, pool, "demo")


def ask(batcher, value, rows=1):
    return asyncio.ensure_future(batcher.answer(BatchRequest([value], rows, rows > 1)))


async def started(engine):
    await asyncio.to_thread(engine.started.wait, 10)


async def test_a_full_batch_runs_at_once(engine, pool):
    batcher = make(engine, pool, max_batch_size=3, max_wait_us=LONG_US)
    answers = await asyncio.gather(*(batcher.answer(BatchRequest([i])) for i in range(3)))
    assert [answer.outputs for answer in answers] == [0, 1, 2]
    assert engine.batches == [[0, 1, 2]]


async def test_a_partial_batch_runs_when_its_first_row_has_waited(engine, pool):
    batcher = make(engine, pool, max_batch_size=3, max_wait_us=30_000)
    start = asyncio.get_running_loop().time()
    await asyncio.gather(ask(batcher, 0), ask(batcher, 1))
    assert asyncio.get_running_loop().time() - start >= 0.029
    assert engine.batches == [[0, 1]]


async def test_without_wait_rows_of_one_turn_join(engine, pool):
    batcher = make(engine, pool, max_batch_size=64)
    await asyncio.gather(*(ask(batcher, i) for i in range(5)))
    assert engine.batches == [[0, 1, 2, 3, 4]]


async def test_the_next_batch_collects_while_one_runs(engine, pool):
    batcher = make(engine, pool, max_batch_size=4)
    engine.free.clear()
    first = ask(batcher, 0)
    await started(engine)
    rest = [ask(batcher, i) for i in range(1, 6)]
    await asyncio.sleep(0)
    engine.free.set()
    await asyncio.gather(first, *rest)
    assert engine.batches == [[0], [1, 2, 3, 4], [5]]


async def test_a_failed_forward_fails_its_callers_and_no_others(engine, pool):
    batcher = make(engine, pool, max_batch_size=2, max_wait_us=LONG_US)
    engine.error = RuntimeError("the network is broken")
    results = await asyncio.gather(*(ask(batcher, i) for i in range(2)), return_exceptions=True)
    assert results == [engine.error, engine.error]
    engine.error = None
    good = await asyncio.gather(*(ask(batcher, i) for i in range(2)))
    assert [answer.outputs for answer in good] == [0, 1]


async def test_a_bad_request_fails_alone(pool):
    def run(requests):
        return [
            ValueError("bad") if request.leaves[0] == "b" else Answer(request.leaves[0], 1)
            for request in requests
        ]

    batcher = make(run, pool, max_batch_size=3, max_wait_us=LONG_US)
    first, bad, last = (ask(batcher, value) for value in "abc")
    assert (await first).outputs == "a"
    with pytest.raises(ValueError, match="bad"):
        await bad
    assert (await last).outputs == "c"


async def test_a_request_has_a_deadline(engine, pool):
    engine.free.clear()
    batcher = make(engine, pool, max_batch_size=1, timeout_s=0.05)
    running, waiting = ask(batcher, "a"), ask(batcher, "b")
    for late in (running, waiting):
        with pytest.raises(DeadlineError, match=r"model 'demo': no answer within 0\.05 s"):
            await late
    engine.free.set()
    after = ask(batcher, "c")
    assert (await after).outputs == "c"
    assert engine.batches == [["a"], ["c"]], "who gave up is not computed"


async def test_a_cancelled_caller_leaves_the_queue(engine, pool):
    batcher = make(engine, pool, max_batch_size=3, max_wait_us=LONG_US)
    waiting = [ask(batcher, i) for i in range(2)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    rest = [ask(batcher, i) for i in (2, 3)]
    await asyncio.gather(waiting[1], *rest)
    assert engine.batches == [[1, 2, 3]]


async def test_cancelling_the_first_restarts_the_wait_of_the_next(engine, pool):
    batcher = make(engine, pool, max_batch_size=3, max_wait_us=20_000)
    first = ask(batcher, 0)
    await asyncio.sleep(0)
    first.cancel()
    assert (await ask(batcher, 1)).outputs == 1
    assert engine.batches == [[1]]


async def test_a_caller_cancelled_while_its_batch_runs_disturbs_nobody(engine, pool):
    batcher = make(engine, pool, max_batch_size=2, max_wait_us=LONG_US)
    engine.free.clear()
    one, other = ask(batcher, 0), ask(batcher, 1)
    await started(engine)
    one.cancel()
    engine.free.set()
    assert (await other).outputs == 1
    with pytest.raises(asyncio.CancelledError):
        await one


async def test_a_full_queue_refuses(engine, pool):
    batcher = make(engine, pool, max_batch_size=2, max_queue_rows=3)
    engine.free.clear()
    running = [ask(batcher, i) for i in range(2)]
    await started(engine)
    waiting = ask(batcher, 2)
    await asyncio.sleep(0)
    with pytest.raises(
        CapacityError,
        match=r"model 'demo': 1 rows wait and 3 more exceed max_queue_rows=3: send fewer",
    ):
        await batcher.answer(BatchRequest([3], 3, True))
    engine.free.set()
    await asyncio.gather(*running, waiting)


async def test_requests_with_rows_share_batches_in_order(engine, pool):
    batcher = make(engine, pool, max_batch_size=8)
    engine.free.clear()
    first = ask(batcher, "held")
    await started(engine)
    sizes = [3, 4, 2, 20, 1]
    rest = [ask(batcher, f"{i}x{rows}", rows) for i, rows in enumerate(sizes)]
    await asyncio.sleep(0)
    engine.free.set()
    await asyncio.gather(first, *rest)
    assert engine.batches == [["held"], ["0x3", "1x4"], ["2x2"], ["3x20"], ["4x1"]]


async def test_close_fails_who_waits_and_answers_what_runs(engine, pool):
    batcher = make(engine, pool, max_batch_size=1)
    engine.free.clear()
    running = ask(batcher, 0)
    await started(engine)
    waiting = ask(batcher, 1)
    await asyncio.sleep(0)
    batcher.close()
    with pytest.raises(ClosedError, match=r"model 'demo': closed"):
        await waiting
    engine.free.set()
    assert (await running).outputs == 0
    with pytest.raises(ClosedError):
        await batcher.answer(BatchRequest([2]))


async def test_a_pool_that_was_shut_down_fails_the_callers(engine, pool):
    batcher = make(engine, pool)
    pool.shutdown()
    with pytest.raises(ClosedError):
        await asyncio.wait_for(ask(batcher, 0), 10)


@pytest.fixture
def where(pool, monkeypatch):
    """Function: microseconds that batches compute → whether each ran on the loop, below 100 us.

    In a thread each also waits for `waits_us`.
    """
    clock, computed = [0.0], [0.0]
    monkeypatch.setattr(batcher_module.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(batcher_module.time, "thread_time", lambda: computed[0])

    async def ask_all(times_us, waits_us=0, **settings):
        threads = []

        def run(requests):
            threads.append(threading.current_thread())
            took_us = requests[0].leaves[0]
            computed[0] += took_us * 1e-6
            is_on_loop = threading.current_thread() is threading.main_thread()
            clock[0] += (took_us + (0 if is_on_loop else waits_us)) * 1e-6
            return [Answer(0, 0)]

        config = ModelConfig(inline_below_us=100, **settings)
        batcher = Batcher(asyncio.get_running_loop(), run, config, pool, "demo")
        for time_us in times_us:
            await ask(batcher, time_us)
        return [thread is threading.current_thread() for thread in threads]

    return ask_all


async def test_batches_run_on_the_loop_after_quick_ones(where):
    assert await where([20] * 5) == [False, True, True, True, True]
    assert await where([200] * 5) == [False] * 5


async def test_a_slow_batch_sends_the_next_ones_to_the_thread_until_it_is_forgotten(where):
    on_loop = await where([20, 20, 1000, *[20] * 10])
    assert on_loop[:4] == [False, True, True, False]
    assert on_loop[4:] == sorted(on_loop[4:])
    assert on_loop[-1]


async def test_what_a_thread_waits_for_the_loop_keeps_no_batch_in_it(where):
    assert await where([20] * 4, waits_us=5000) == [False, True, True, True]
    assert await where([20] * 4, waits_us=5000, device="cuda") == [False] * 4


steps = st.lists(
    st.tuples(st.integers(1, 7), st.booleans(), st.integers(0, 3)), min_size=1, max_size=40
)


@settings(max_examples=60, deadline=None)
@given(steps, st.integers(1, 5), st.sampled_from([0, 1000]), st.booleans())
def test_every_caller_gets_its_own_row_under_any_interleaving(steps, size, wait_us, inline):
    """Callers of 1 to 7 rows come after 0 to 3 turns of the loop; some are cancelled."""

    def run(requests):
        rows = sum(request.rows for request in requests)
        assert rows <= size or len(requests) == 1
        return [Answer(request.leaves[0] * 2, 0) for request in requests]

    async def main(pool):
        below_us = 10**9 if inline else 0
        config = ModelConfig(max_batch_size=size, max_wait_us=wait_us, inline_below_us=below_us)
        batcher = Batcher(asyncio.get_running_loop(), run, config, pool, "demo")
        tasks = []
        for number, (rows, cancel, turns) in enumerate(steps):
            task = ask(batcher, np.full(rows, number), rows)
            tasks.append((number, rows, cancel, task))
            for _ in range(turns):
                await asyncio.sleep(0)
            if cancel:
                task.cancel()
        for number, rows, cancel, task in tasks:
            try:
                answer = await asyncio.wait_for(task, 10)
            except asyncio.CancelledError:
                assert cancel
            else:
                np.testing.assert_array_equal(answer.outputs, np.full(rows, 2 * number))
        assert (batcher._rows, len(batcher._queue)) == (0, 0)

    with ThreadPoolExecutor(1) as pool:
        asyncio.run(main(pool))
