"""Dynamic batching on one event loop: rows wait for company, then run together."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from bray_core import metrics
from bray_core.errors import CapacityError, ClosedError, DeadlineError
from bray_core.protocols import Answer
from bray_model.batching.executor import BatchRequest
from bray_model.config import ModelConfig

_TRUST = 0.3
"""Weight of a new measurement against those before it."""

RunBatch = Callable[[Sequence[BatchRequest]], list[Answer | Exception]]


@dataclass(slots=True, eq=False)
class _Waiter:
    request: BatchRequest
    future: asyncio.Future[Answer]
    since: float


class Batcher:
    """Collects requests into batches.

    Every method but `close_soon` is called on its event loop.

    A batch runs as soon as `max_batch_size` rows wait, else `max_wait_us` after its first row
    came. While one runs the next collects. Quick ones run on the loop, others in the pool. A
    forward that fails fails its callers with the error; a bad request among good ones fails alone.

    Args:
        loop: Event loop on which callers wait.
        run: Answers requests, blocking.
        config: Batch size, wait, queue bound.
        pool: Thread that calls `run` where that is not quick enough for the loop.
        name: Name of the model, for messages.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        run: RunBatch,
        config: ModelConfig,
        pool: ThreadPoolExecutor,
        name: str,
    ) -> None:
        self.loop = loop
        self._run = run
        self._config = config
        self._pool = pool
        self._name = name
        self._queue: deque[_Waiter] = deque()
        self._rows = 0
        self._running = False
        self._run_us = math.inf
        """Recent time of a batch, in microseconds."""
        self._timer: asyncio.Handle | None = None
        self._closed = False

    async def answer(self, request: BatchRequest) -> Answer:
        """Queue a request and wait for its answer; a cancelled caller leaves the queue.

        Raises:
            CapacityError: too many rows wait.
            DeadlineError: no answer came within `timeout_s` of the config; the request leaves the
                queue.
            ClosedError: the model was closed.
            Exception: whatever the forward raised.
        """
        limit_s = self._config.timeout_s
        waiter = self._enqueue(request)
        try:
            if limit_s is None:
                return await waiter.future
            async with asyncio.timeout(limit_s):
                return await waiter.future
        except asyncio.CancelledError:
            self._drop(waiter)
            raise
        except TimeoutError:
            self._drop(waiter)
            if limit_s is None or not waiter.future.cancelled():
                raise  # the forward's own
            raise DeadlineError(f"model {self._name!r}: no answer within {limit_s:g} s") from None

    def close(self) -> None:
        """Fail all who wait and refuse further requests; a batch that runs is answered."""
        self._closed = True
        self._stop_timer()
        self._rows = 0
        while self._queue:
            _fail(self._queue.popleft().future, self._closed_error())

    def close_soon(self) -> None:
        """Close it from any thread, soon."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self.loop.call_soon_threadsafe(self.close)

    def _closed_error(self) -> ClosedError:
        return ClosedError(f"model {self._name!r}: closed")

    def _enqueue(self, request: BatchRequest) -> _Waiter:
        if self._closed:
            raise self._closed_error()
        rows = self._rows + request.rows
        if rows > self._config.max_queue_rows:
            raise CapacityError(
                f"model {self._name!r}: {self._rows} rows wait and {request.rows} more exceed "
                f"max_queue_rows={self._config.max_queue_rows}: send fewer at a time or raise it "
                "(`bray serve --max-queue-rows`)"
            )
        waiter = _Waiter(request, self.loop.create_future(), self.loop.time())
        self._queue.append(waiter)
        self._rows = rows
        self._schedule()
        return waiter

    def _drop(self, waiter: _Waiter) -> None:
        try:
            self._queue.remove(waiter)
        except ValueError:
            if waiter.future.done() and not waiter.future.cancelled():
                waiter.future.exception()  # seen, so that asyncio does not report it as lost
            return  # its batch runs, or ran, already
        self._rows -= waiter.request.rows
        self._stop_timer()  # it may have been the first row's
        self._schedule()

    def _schedule(self) -> None:
        """Run the queue now, or arrange for it, unless a batch runs."""
        if self._running or not self._queue:
            return
        if self._rows >= self._config.max_batch_size:
            self._flush()
        elif self._timer is None:
            due = self._queue[0].since + self._config.max_wait_us * 1e-6
            if due > self.loop.time():
                self._timer = self.loop.call_at(due, self._flush)
            else:
                self._timer = self.loop.call_soon(self._flush)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _flush(self) -> None:
        self._stop_timer()
        if self._running or not self._queue:
            return
        batch = self._take()
        self._running = True
        is_oversized = batch[0].request.rows > self._config.max_batch_size  # several batches
        if self._run_us < self._config.inline_below_us and not is_oversized:
            self._done(batch, *self._attempt(batch, time.perf_counter))
        else:
            try:
                self._pool.submit(self._work, batch)
            except RuntimeError:  # shut down; this loop has not run `close` yet
                self._done(batch, [], self._closed_error())

    def _take(self) -> list[_Waiter]:
        """Take requests in order while they fit into one batch; an oversized one goes alone."""
        batch = [self._queue.popleft()]
        rows = batch[0].request.rows
        while self._queue and rows + self._queue[0].request.rows <= self._config.max_batch_size:
            batch.append(self._queue.popleft())
            rows += batch[-1].request.rows
        self._rows -= rows
        metrics.record("model/wait_s", self.loop.time() - batch[0].since)
        metrics.record("model/queued_rows", self._rows)
        return batch

    def _attempt(
        self, batch: list[_Waiter], clock: Callable[[], float]
    ) -> tuple[list[Answer | Exception], Exception | None]:
        began = clock()
        try:
            return self._run([waiter.request for waiter in batch]), None
        except Exception as error:  # noqa: BLE001 a request boundary: passed to every waiter
            return [], error
        finally:
            self._note((clock() - began) * 1e6)

    def _note(self, run_us: float) -> None:
        """Believe a slow batch at once, and quick ones by and by."""
        before = self._run_us if self._run_us < math.inf else run_us
        self._run_us = max(run_us, before + _TRUST * (run_us - before))

    def _work(self, batch: list[_Waiter]) -> None:
        """Run a batch in the pool's thread.

        There a forward also waits until a busy loop lets go of the interpreter, which it would not
        on the loop itself: so what counts is the time that it computes.
        """
        is_computed_here = self._config.device == "cpu"
        clock = time.thread_time if is_computed_here else time.perf_counter
        result = self._attempt(batch, clock)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self.loop.call_soon_threadsafe(self._done, batch, *result)

    def _done(
        self, batch: list[_Waiter], answers: list[Answer | Exception], error: Exception | None
    ) -> None:
        self._running = False
        if error is not None:
            for waiter in batch:
                _fail(waiter.future, error)
        else:
            for waiter, answer in zip(batch, answers, strict=True):
                if isinstance(answer, Exception):
                    _fail(waiter.future, answer)
                elif not waiter.future.done():
                    waiter.future.set_result(answer)
        self._schedule()


class LoopBatchers:
    """One batcher for each event loop from which a model is asked. Thread-safe.

    A loop gets its batcher when it first asks; a closed loop loses it.

    Args:
        run, config, pool, name: Arguments of each `Batcher`.
    """

    def __init__(
        self, run: RunBatch, config: ModelConfig, pool: ThreadPoolExecutor, name: str
    ) -> None:
        self._run = run
        self._config = config
        self._pool = pool
        self._name = name
        self._lock = threading.Lock()
        self._by_loop: dict[asyncio.AbstractEventLoop, Batcher] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._by_loop)

    def answer(self, request: BatchRequest) -> Coroutine[Any, Any, Answer]:
        """Answer in a batch with others of this loop; see `Batcher.answer`."""
        batcher = self._by_loop.get(asyncio.get_running_loop()) or self._new()
        return batcher.answer(request)

    def close(self) -> None:
        """Fail those who wait, on any loop, and refuse further requests."""
        with self._lock:
            self._closed = True
            batchers = list(self._by_loop.values())
        for batcher in batchers:
            batcher.close_soon()

    def _new(self) -> Batcher:
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._closed:
                raise ClosedError(f"model {self._name!r}: closed")
            for other in [other for other in self._by_loop if other.is_closed()]:
                del self._by_loop[other]
            batcher = Batcher(loop, self._run, self._config, self._pool, self._name)
            self._by_loop[loop] = batcher
        return batcher


def _fail(future: asyncio.Future[Answer], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
