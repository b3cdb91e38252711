"""A buffer in workers on Ray: packed segments in, batches out."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

import ray

from bray_buffer.buffer import Buffer
from bray_buffer.config import BufferConfig
from bray_buffer.ring import as_layout, as_rows
from bray_core import metrics
from bray_core.errors import ClosedError, DeadlineError, WorkerLostError
from bray_core.layout import Layout, Packed
from bray_core.nested import Nested
from bray_core.remote import WorkerPool

_MAX_IN_FLIGHT = 32
"""Pushes of one handle under way; the next one waits for the oldest."""
_PUSH_TIMEOUT_S = 60.0
_CONCURRENCY = 8
"""Calls that a worker runs at a time: a waiting pop must not hold up pushes."""
_POP_FOREVER_S = 3600.0
_GRACE_S = 5.0
"""How much longer than the worker's own deadline its answer may take."""


class _HostedBuffer(Buffer):
    """The plain buffer of one worker, with what only the handle asks for."""

    def push_within(self, packed: Packed, timeout_s: float) -> int:
        return self.push(packed, wait=True, timeout_s=timeout_s)

    def get_layout(self) -> Layout:
        return self.layout


class RemoteBuffer:
    """A handle over buffer workers; it can be sent to other processes.

    Pushes are sent without waiting for their acknowledgement, a bounded number at a time, and may
    overtake each other. A
    segment on its way to a worker that dies is lost, and counted in `stats()["lost"]`.

    Args:
        name: of the pool.
        layout: of one segment, or its spec.
        config: as for `Buffer`; each worker holds `capacity` segments.
        num_workers: each batch comes from one worker; pushes go to them by turns.
    """

    def __init__(
        self, name: str, layout: Layout | Nested, config: BufferConfig, num_workers: int = 1
    ) -> None:
        layout = as_layout(layout)
        pool = WorkerPool(
            name,
            _HostedBuffer,
            args=(layout, config),
            num_workers=num_workers,
            max_concurrency=_CONCURRENCY,
        )
        self._adopt(pool, layout)

    def _adopt(self, pool: WorkerPool, layout: Layout) -> None:
        self._pool = pool
        self._layout = layout
        self._lock = threading.Lock()
        self._in_flight: deque[tuple[Any, int]] = deque()
        self._lost = 0
        self._turn = 0

    @classmethod
    def get(cls, name: str) -> RemoteBuffer:
        """Look up a buffer by name; raises NotFoundError."""
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
        """Pack segments and send them to a worker; errors as in `Buffer.push`.

        Without `wait` the number returned is what was sent: what the worker then drops is counted
        in its `stats()["dropped"]`.
        """
        rows = [as_rows(self._layout, segment) for segment in segments]
        worker = self._pool.choose("round_robin")
        for row in rows:
            packed = Packed(self._layout, row)
            if wait:
                limit = _PUSH_TIMEOUT_S if timeout_s is None else timeout_s
                self._pool.call(
                    "push_within", packed, limit, worker=worker, timeout_s=limit + _GRACE_S
                )
            else:
                self._send(packed, worker)
        return sum(len(row) for row in rows)

    def _send(self, packed: Packed, worker: int) -> None:
        with self._lock:
            self._settle(_MAX_IN_FLIGHT - 1)
            ref = self._pool.submit("push", packed, worker=worker)
            self._in_flight.append((ref, len(packed.block)))

    def _settle(self, keep: int) -> None:
        """Take acknowledgements until at most `keep` pushes are under way."""
        while self._in_flight:
            ref, count = self._in_flight[0]
            done, _ = ray.wait([ref], timeout=0)
            if not done and len(self._in_flight) <= keep:
                return
            self._in_flight.popleft()
            try:
                self._pool.result(ref, _PUSH_TIMEOUT_S)
            except (WorkerLostError, DeadlineError):
                self._lost += count
                metrics.record("buffer/lost_segments", count, kind="count")

    def pop(self, timeout_s: float | None = None) -> Packed:
        """Return the next batch of one worker; errors as in `Buffer.pop`, and WorkerLostError."""
        limit = _POP_FOREVER_S if timeout_s is None else timeout_s
        self._turn = (self._turn + 1) % self._pool.size
        popped: Packed = self._pool.call(
            "pop", limit, worker=self._turn, timeout_s=limit + _GRACE_S
        )
        return popped

    def __iter__(self) -> Iterator[Packed]:
        """Yield batches until the buffer is closed."""
        while True:
            try:
                yield self.pop()
            except ClosedError:
                return

    def flush(self) -> None:
        """Wait until every push has been acknowledged or counted as lost."""
        with self._lock:
            self._settle(-1)

    def stats(self) -> dict[str, float]:
        """Return the sums over all workers, and what this handle has lost."""
        totals: dict[str, float] = {"lost": self._lost}
        for figures in self._pool.call_all("stats"):
            for name, value in figures.items():
                totals[name] = totals.get(name, 0.0) + value
        return totals

    def drain_metrics(self) -> list[metrics.Sample]:
        """Gather what every worker recorded."""
        return self._pool.drain_metrics()

    def close(self) -> None:
        """End the workers; whoever waits for them gets WorkerLostError or ClosedError."""
        self._pool.close()


def _restore(pool: WorkerPool, layout: Layout) -> RemoteBuffer:
    buffer = RemoteBuffer.__new__(RemoteBuffer)
    buffer._adopt(pool, layout)
    return buffer
