"""A buffer in workers on Ray: packed segments in, batches out."""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import ray
import ray.exceptions

from bray_buffer.buffer import Buffer
from bray_buffer.config import BufferConfig
from bray_buffer.ring import as_layout, as_rows
from bray_core import metrics
from bray_core.errors import ClosedError, DeadlineError, WorkerLostError
from bray_core.layout import Block, Layout, Packed
from bray_core.nested import Nested
from bray_core.remote import WorkerPool

logger = logging.getLogger(__name__)

_MAX_IN_FLIGHT = 32
"""Pushes of one handle under way; the next one waits for the oldest."""
_PUSH_TIMEOUT_S = 60.0
_CONCURRENCY = 8
"""Calls that a worker runs at a time."""
_MAX_WAITERS = _CONCURRENCY // 2
"""Those of them that may wait, so that waiting pushes never shut out the pop that ends the wait."""
_SLICE_S = 2.0
"""A long wait is several calls of this length: a caller that dies leaves no longer one behind."""
_TURN_S = 0.1
"""How long a pop waits at one of several workers before it asks the next."""
_RETRY_S = 0.02
_GRACE_S = 5.0
"""How much longer than the worker's own deadline its answer may take."""

Seen: TypeAlias = tuple[int, int, int]
"""A worker's life (its start in ns), the number of its answer, and what would be lost with it."""


class _Worker:
    """The plain buffer of one worker process.

    Every answer carries what the worker holds, and handles send back the last they saw: so a
    worker that is started in a dead one's place learns what was lost.
    """

    def __init__(self, layout: Layout, config: BufferConfig) -> None:
        self._buffer = Buffer(layout, config)
        self._drops_what_it_refuses = config.when_full == "block"  # else the buffer counts it
        self._life = time.time_ns()
        self._answers = itertools.count(1)
        self._lock = threading.Lock()
        self._before: Seen = (0, 0, 0)
        self._waiters = threading.BoundedSemaphore(_MAX_WAITERS)
        self._refused = 0

    def get_layout(self) -> Layout:
        return self._buffer.layout

    def push(self, seen: Seen, block: Block) -> tuple[int, Seen]:
        """Push for a caller that does not wait: what finds no room is gone."""
        accepted = self._buffer.push(Packed(self._buffer.layout, block))
        if self._drops_what_it_refuses and accepted < len(block):
            with self._lock:
                self._refused += len(block) - accepted
            metrics.record("buffer/dropped_segments", len(block) - accepted, kind="count")
        return accepted, self._learn(seen)

    def offer(self, seen: Seen, block: Block, timeout_s: float) -> tuple[int, Seen]:
        packed = Packed(self._buffer.layout, block)
        accepted = self._waiting(lambda wait_s: self._buffer.offer(packed, wait_s), timeout_s)
        return accepted, self._learn(seen)

    def pop(self, seen: Seen, timeout_s: float) -> tuple[Block | str, Seen]:
        """Return a batch's block, or why there is none."""
        try:
            answer: Block | str = self._waiting(self._buffer.pop, timeout_s).block
        except DeadlineError as error:
            answer = str(error)
        return answer, self._learn(seen)

    def stats(self, seen: Seen) -> tuple[dict[str, float], Seen]:
        seen = self._learn(seen)
        stats = self._buffer.stats()
        return stats | {"dropped": stats["dropped"] + self._refused, "lost": self._before[2]}, seen

    def _waiting(self, call: Any, timeout_s: float) -> Any:
        """Call with `timeout_s`, or with 0 if as many others wait as may."""
        may_wait = timeout_s > 0 and self._waiters.acquire(blocking=False)
        try:
            return call(timeout_s if may_wait else 0.0)
        finally:
            if may_wait:
                self._waiters.release()

    def _learn(self, seen: Seen) -> Seen:
        """Take in what a handle saw, and return what it sees now."""
        with self._lock:
            if self._before < seen and seen[0] < self._life:
                lost = seen[2] - self._before[2]
                self._before = seen
                metrics.record("buffer/lost_segments", lost, kind="count")
            queued = int(self._buffer.stats()["queued"])
            return self._life, next(self._answers), self._before[2] + queued


class RemoteBuffer:
    """A handle over buffer workers; it can be sent to other processes.

    Pushes are sent without waiting for their acknowledgement, a bounded number at a time, and may
    overtake each other; what goes wrong with one is raised by a later push. A worker that dies is
    replaced, and pushes and pops go on; what it held and what was on its way to it is lost, and
    counted in `stats()["lost"]`, as of the last answers that handles had from it.

    Args:
        name: of the pool.
        layout: of one segment, or its spec.
        config: as for `Buffer`; each worker holds `capacity` segments.
        num_workers: each batch comes from one worker; pushes go to them by turns.

    Raises:
        AlreadyExistsError: there is a pool of that name.
    """

    def __init__(
        self, name: str, layout: Layout | Nested, config: BufferConfig, num_workers: int = 1
    ) -> None:
        layout = as_layout(layout)
        pool = WorkerPool(
            name,
            _Worker,
            args=(layout, config),
            num_workers=num_workers,
            max_concurrency=_CONCURRENCY,
        )
        self._adopt(pool, layout)

    def _adopt(self, pool: WorkerPool, layout: Layout) -> None:
        self._pool = pool
        self._layout = layout
        self._sending = threading.Lock()
        self._in_flight: deque[tuple[Any, int, int]] = deque()
        self._seen: list[Seen] = [(0, 0, 0)] * pool.size
        self._turn = itertools.cycle(range(pool.size))
        self._lost = 0

    @classmethod
    def get(cls, name: str) -> RemoteBuffer:
        """Look up a buffer by name.

        Raises:
            NotFoundError: there is none.
        """
        pool = WorkerPool.get(name)
        return _restore(pool, pool.call("get_layout"))

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._pool, self._layout)

    @property
    def layout(self) -> Layout:
        """The packed layout of one segment."""
        return self._layout

    def push(
        self, *segments: Packed | Nested, wait: bool = False, timeout_s: float | None = None
    ) -> int:
        """Pack segments and send them to one worker; errors as in `Buffer.push`.

        Without `wait` the number returned is what was sent: what the worker then drops is counted
        in `stats()["dropped"]`, what never reached it in `stats()["lost"]`.
        """
        rows = [as_rows(self._layout, segment) for segment in segments]
        if not rows:
            return 0
        block = rows[0] if len(rows) == 1 else np.concatenate(rows)
        self._check_open()
        worker = self._pool.choose("round_robin")
        if wait:
            return self._push_and_wait(block, worker, timeout_s)
        with self._sending:
            self._settle(_MAX_IN_FLIGHT - 1)
            ref = self._pool.submit("push", self._seen[worker], block, worker=worker)
            self._in_flight.append((ref, worker, len(block)))
        return len(block)

    def _push_and_wait(self, block: Block, worker: int, timeout_s: float | None) -> int:
        deadline = _deadline(timeout_s)
        accepted = 0
        while True:
            slice_s = min(_SLICE_S, max(0.0, deadline - time.monotonic()))
            found = self._ask(worker, "offer", block[accepted:], slice_s, timeout_s=slice_s)
            accepted += found or 0
            if accepted == len(block):
                return accepted
            if time.monotonic() >= deadline:
                raise DeadlineError(
                    f"buffer {self._pool.name}: push found no room within {timeout_s:g} s, "
                    f"{accepted} of {len(block)} segments were accepted"
                )
            time.sleep(_RETRY_S)

    def _ask(self, worker: int, method: str, *args: Any, timeout_s: float) -> Any:
        """Call a worker; None if it is being restarted."""
        self._check_open()
        try:
            answer, seen = self._pool.call(
                method, self._seen[worker], *args, worker=worker, timeout_s=timeout_s + _GRACE_S
            )
        except WorkerLostError as error:
            self._check_restarts(error)
            return None
        self._see(worker, seen)
        return answer

    def _see(self, worker: int, seen: Seen) -> None:
        self._seen[worker] = max(self._seen[worker], seen)

    def _check_open(self) -> None:
        if not self._pool.size:
            raise ClosedError(f"buffer {self._pool.name}: closed")

    def _check_restarts(self, error: WorkerLostError) -> None:
        if isinstance(error.__cause__, ray.exceptions.ActorDiedError):
            raise ClosedError(f"buffer {self._pool.name}: closed") from error
        logger.warning("buffer %s: waits for a lost worker's restart: %s", self._pool.name, error)

    def _settle(self, keep: int) -> None:
        """Take acknowledgements until at most `keep` pushes are under way."""
        while self._in_flight:
            ref, worker, count = self._in_flight[0]
            done, _ = ray.wait([ref], timeout=0)
            if not done and len(self._in_flight) <= keep:
                return
            self._in_flight.popleft()
            try:
                _, seen = self._pool.result(ref, _PUSH_TIMEOUT_S)
            except (WorkerLostError, DeadlineError) as error:
                self._lost += count
                metrics.record("buffer/lost_segments", count, kind="count")
                if isinstance(error, WorkerLostError):
                    self._check_restarts(error)
            else:
                self._see(worker, seen)

    def pop(self, timeout_s: float | None = None) -> Packed:
        """Return the next batch of one worker, `[B, nbytes]`.

        Raises:
            DeadlineError: no batch within `timeout_s`.
            ClosedError: the buffer was closed.
        """
        deadline = _deadline(timeout_s)
        longest_s = _SLICE_S if self._pool.size == 1 else _TURN_S
        while True:
            self._check_open()
            slice_s = min(longest_s, max(0.0, deadline - time.monotonic()))
            answer = self._ask(next(self._turn), "pop", slice_s, timeout_s=slice_s)
            if isinstance(answer, np.ndarray):
                # What Ray returns is read-only, and pins the object store's memory.
                return Packed(self._layout, answer.copy())
            if time.monotonic() >= deadline:
                raise DeadlineError(
                    f"buffer {self._pool.name}: no batch within {timeout_s:g} s: "
                    f"{answer or 'its worker is being restarted'}"
                )
            time.sleep(_RETRY_S)

    def __iter__(self) -> Iterator[Packed]:
        """Yield batches until the buffer is closed."""
        while True:
            try:
                yield self.pop()
            except ClosedError:
                return

    def flush(self) -> None:
        """Wait until every push has been acknowledged or counted as lost."""
        with self._sending:
            self._settle(0)

    def stats(self) -> dict[str, float]:
        """Return the sums over all workers, and with them what this handle has `lost`."""
        totals: dict[str, float] = {"lost": self._lost}
        for worker in range(self._pool.size):
            figures = self._ask(worker, "stats", timeout_s=_PUSH_TIMEOUT_S) or {}
            for name, value in figures.items():
                totals[name] = totals.get(name, 0.0) + value
        return totals

    def drain_metrics(self) -> list[metrics.Sample]:
        """Gather what every worker recorded."""
        return self._pool.drain_metrics()

    def close(self) -> None:
        """End the workers; whoever waits for them gets ClosedError."""
        self._pool.close()


def _deadline(timeout_s: float | None) -> float:
    return math.inf if timeout_s is None else time.monotonic() + timeout_s


def _restore(pool: WorkerPool, layout: Layout) -> RemoteBuffer:
    buffer = RemoteBuffer.__new__(RemoteBuffer)
    buffer._adopt(pool, layout)
    return buffer
