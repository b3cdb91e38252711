"""Connections of a handle to one worker: shared memory, a socket, or calls on Ray."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from bray_buffer.queue.policy_lag import PolicyLag
from bray_buffer.shared.sharing_rules import BufferDescription, SharedMemoryNames, push_rows
from bray_buffer.shared.slot_pool import SlotPool, Write
from bray_buffer.shared.socket_carrier import SegmentSender
from bray_buffer.shared.transfer_thread import PRIORITY
from bray_core import metrics
from bray_core.errors import DeadlineError, WorkerLostError
from bray_core.files.shared_file import FOLDER, SharedFile
from bray_core.layout import Block, Layout
from bray_core.remote.pool import WorkerPool

_MAX_IN_FLIGHT = 32
"""Largest number of pushes without an answer; the next one waits for the oldest."""
_MAX_CALL_NBYTES = 96 << 10
"""Largest size of the rows in one call: above 100 KB Ray uses its object store, half as fast."""
_PUSH_TIMEOUT_S = 60.0
_GRACE_S = 5.0
"""Time that an answer may take beyond the worker's own deadline."""
_UPDATE_TIMEOUT_S = 5.0


class BufferConnection(Protocol):
    """Connection to one worker, for producers and consumers."""

    def push(self, count: int, write: Write, steps: Sequence[int] | None, wait_s: float) -> int:
        """Write rows, and return how many were taken or, if nobody waits, sent."""
        ...

    def num_free(self) -> int:
        """Return how many rows there was room for at its last answer."""
        ...

    def take(self, deadline: float) -> Block | None:
        """Return a batch, or None if there is none before the deadline."""
        ...

    def flush(self) -> None:
        """Wait until what was pushed has arrived."""
        ...

    def close(self) -> None:
        """Leave the worker."""
        ...


class SharedMemoryConnection:
    """Connection to a worker of the same node, by shared memory."""

    def __init__(self, description: BufferDescription, index: int) -> None:
        names = SharedMemoryNames.of(description.token, index, description.rules)
        self._rules = description.rules
        self.inbox = SlotPool.open(SharedFile.open(FOLDER / names.inbox))
        self.outbox = self.inbox
        self._priorities = None
        if not self._rules.is_direct:
            self.outbox = SlotPool.open(SharedFile.open(FOLDER / names.outbox))
        if self._rules.is_prioritized:
            self._priorities = SlotPool.open(SharedFile.open(FOLDER / names.priorities))
        max_lag = self._rules.max_policy_lag
        self._lag = None if max_lag is None else PolicyLag(description.layout, max_lag)

    def push(self, count: int, write: Write, steps: Sequence[int] | None, wait_s: float) -> int:
        """Write rows, and return how many were taken or, if nobody waits, sent."""
        return push_rows(self.inbox, self._rules, count, write, steps, wait_s)

    def num_free(self) -> int:
        """Return how many rows there was room for at its last answer."""
        return self.inbox.num_free()

    def take(self, deadline: float) -> Block | None:
        """Return a batch, or None if there is none before the deadline."""
        return self.outbox.take(deadline, lag=self._lag)

    def flush(self) -> None:
        """Wait until the worker has taken in what waits for it; a queue is there at once."""
        deadline = time.monotonic() + _PUSH_TIMEOUT_S
        while not self._rules.is_direct and self.inbox.num_pending():
            if time.monotonic() > deadline:
                raise DeadlineError("flush: the worker does not take in what was pushed")
            time.sleep(0.0005)

    def update_priorities(self, rows: Any) -> None:
        """Hand rows of `PRIORITY` to the worker; they are lost if it stands still too long."""
        assert self._priorities is not None
        block = rows.view(np.uint8).reshape(len(rows), PRIORITY.itemsize)
        deadline = time.monotonic() + _UPDATE_TIMEOUT_S
        lost = len(block) - self._priorities.push(block, deadline=deadline)
        if lost:
            metrics.record("buffer/lost_priorities", lost, kind="count")

    def remove(self) -> None:
        """Wake every waiter and remove the memory's names, should the worker be dead."""
        for pool in self._pools():
            pool.close()

    def close(self) -> None:
        """Leave the worker."""
        for pool in self._pools():
            pool.leave()

    def _pools(self) -> set[SlotPool]:
        return {pool for pool in (self.inbox, self.outbox, self._priorities) if pool is not None}


class SocketConnection:
    """Connection to a worker of another node: a socket for producers, calls for consumers."""

    def __init__(
        self, pool: WorkerPool, index: int, address: tuple[str, int], description: BufferDescription
    ) -> None:
        self._calls = RayCallConnection(pool, index, description.layout)
        self._address = address
        self._token = description.token
        self._nbytes = description.layout.nbytes
        self._lock = threading.Lock()
        self._sender: SegmentSender | None = SegmentSender(address, description.token)
        self._credits = 0

    def push(self, count: int, write: Write, steps: Sequence[int] | None, wait_s: float) -> int:
        """Write rows, and return how many were taken or, if nobody waits, sent."""
        block = np.empty((count, self._nbytes), np.uint8)
        write(block, 0)
        with self._lock:
            try:
                return self._send(block, wait_s)
            except OSError as error:
                self._lose()
                raise WorkerLostError(f"{self._address}: {error}") from error

    def _send(self, block: Block, wait_s: float) -> int:
        if self._sender is None:
            self._sender = SegmentSender(self._address, self._token)
        waits = wait_s > 0
        self._sender.settle(0 if waits else _MAX_IN_FLIGHT)
        self._sender.send(block, wait_s)
        accepted = self._sender.settle(0) if waits else len(block)
        self._credits = self._sender.credits
        return accepted

    def _lose(self) -> None:
        if self._sender is not None:
            lost = self._sender.unanswered
            metrics.record("buffer/lost_segments", lost, kind="count")
            self._sender.close()
            self._sender = None

    def num_free(self) -> int:
        """Return how many rows there was room for at its last answer."""
        return self._credits

    def take(self, deadline: float) -> Block | None:
        """Return a batch, or None if there is none before the deadline."""
        return self._calls.take(deadline)

    def flush(self) -> None:
        """Wait until what was pushed has arrived."""
        with self._lock:
            if self._sender is not None:
                self._sender.settle(0)

    def close(self) -> None:
        """Leave the worker."""
        with self._lock:
            if self._sender is not None:
                self._sender.close()


class RayCallConnection:
    """Connection by calls on Ray, which always works: at most 96 KB of rows in each."""

    def __init__(self, pool: WorkerPool, index: int, layout: Layout) -> None:
        self._pool = pool
        self._index = index
        self._nbytes = layout.nbytes
        self._lock = threading.Lock()
        self._in_flight: deque[tuple[Any, int]] = deque()
        self._credits = 0

    def push(self, count: int, write: Write, steps: Sequence[int] | None, wait_s: float) -> int:
        """Write rows, and return how many were taken or, if nobody waits, sent."""
        block = np.empty((count, self._nbytes), np.uint8)
        write(block, 0)
        rows = max(1, _MAX_CALL_NBYTES // self._nbytes)
        accepted = 0
        with self._lock:
            for first in range(0, count, rows):
                accepted += self._push(block[first : first + rows], wait_s)
        return accepted

    def _push(self, rows: Block, wait_s: float) -> int:
        if wait_s > 0:
            self._settle(0)
            wait_s = min(wait_s, _PUSH_TIMEOUT_S)
            accepted, self._credits = self._pool.call(
                "push", rows, wait_s, worker=self._index, timeout_s=wait_s + _GRACE_S
            )
            return int(accepted)
        self._settle(_MAX_IN_FLIGHT)
        ref = self._pool.submit("push", rows, 0.0, worker=self._index)
        self._in_flight.append((ref, len(rows)))
        return len(rows)

    def _settle(self, keep: int) -> None:
        while len(self._in_flight) > keep:
            ref, count = self._in_flight.popleft()
            try:
                _, self._credits = self._pool.result(ref, _PUSH_TIMEOUT_S)
            except (WorkerLostError, DeadlineError):
                metrics.record("buffer/lost_segments", count, kind="count")
                raise

    def num_free(self) -> int:
        """Return how many rows there was room for at its last answer."""
        return self._credits

    def take(self, deadline: float) -> Block | None:
        """Return a batch, or None if there is none before the deadline."""
        timeout_s = min(max(0.0, deadline - time.monotonic()), _GRACE_S)
        answer = self._pool.call(
            "pop", timeout_s, worker=self._index, timeout_s=timeout_s + _GRACE_S
        )
        # What Ray returns is read-only, and pins the object store's memory.
        return answer.copy() if isinstance(answer, np.ndarray) else None

    def flush(self) -> None:
        """Wait until what was pushed has arrived."""
        with self._lock:
            self._settle(0)

    def close(self) -> None:
        """Do nothing: a connection by calls holds nothing."""
