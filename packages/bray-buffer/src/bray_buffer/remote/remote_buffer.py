"""A handle over buffer workers on Ray, which is pushed to and popped from like a plain buffer."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bray_core.errors import (
    ClosedError,
    ConfigError,
    DeadlineError,
    MissingExtraError,
    NotFoundError,
    WorkerLostError,
)

try:
    import ray
    import ray.util
except ImportError:
    raise MissingExtraError("bray_buffer.remote", "bray-buffer", "ray") from None

from bray_buffer.iterable_buffer import IterableBuffer
from bray_buffer.remote.connections import SharedMemoryConnection
from bray_buffer.remote.worker_connections import WorkerConnections
from bray_buffer.replay.replay_buffer import ReplayBuffer
from bray_buffer.saved_state import worker_states
from bray_buffer.segment_lengths import SegmentLengths
from bray_buffer.segment_rows import as_layout, as_rows
from bray_buffer.shared.buffer_worker import BufferWorker
from bray_buffer.shared.sharing_rules import BufferDescription, PlainBufferConfig
from bray_buffer.shared.slot_pool import Write, copying, deadline_after
from bray_buffer.shared.transfer_thread import PRIORITY
from bray_core import metrics, nested
from bray_core.layout import Block, Layout, Packed
from bray_core.nested import Nested
from bray_core.remote.pool import WorkerPool
from bray_core.remote.worker_process import worker_index

Transform = Callable[[Nested], Nested]
Begin = Callable[[ReplayBuffer], object]

_CONCURRENCY = 8
"""Calls that a worker runs at a time."""
_ANSWER_TIMEOUT_S = 60.0
_FILE_TIMEOUT_S = 3600.0
"""Saving and loading run at the disk's speed."""
_CLOSE_TIMEOUT_S = 5.0
_SLICE_S = 0.5
"""A long wait is several of this length, between which the worker's health is looked at."""
_PAUSE_S = 0.0005
_RETRY_S = 0.05
_FOR_EVER_S = 1e9


def _make_worker(
    layout: Layout,
    config: PlainBufferConfig,
    token: str,
    transform: Transform | None,
    begin: Begin | None,
) -> BufferWorker:
    host = ray.util.get_node_ip_address()
    return BufferWorker(layout, config, token, worker_index(), host, transform, begin)


class RemoteBuffer(IterableBuffer):
    """A handle over buffer workers; it can be sent to other processes, on any node.

    Producers of the workers' node write segments straight into batches in shared memory, those of
    other nodes send them through a socket, or by calls on Ray where none can be opened. Consumers
    of that node take batches where they lie: a batch's memory goes back when its last view is
    garbage.

    A worker that dies is replaced; of a queue nothing is lost with it, of a replay its content,
    which is counted in `stats()["lost"]`.

    Args:
        name: Name of the worker pool.
        layout: Packed layout of one segment, or its spec.
        config: Settings of a queue or a replay; each worker holds `capacity` of its own.
        num_workers: Number of workers. Each batch comes from one of them; a push goes to the one
            with the most room.
        transform: Function that every batch goes through, see `Buffer`; it runs in the workers.
        node: Ray's id of the node where workers and consumers are; by default this one.
        begin: Function that fills a replay which holds nothing; it runs in the workers, when
            `begin` is called, and in each worker that replaces a dead one.

    Raises:
        AlreadyExistsError: a pool of that name exists.
        WorkerLostError: a worker could not start, such as for lack of shared memory; quotes why.
    """

    def __init__(
        self,
        name: str,
        layout: Layout | Nested,
        config: PlainBufferConfig,
        num_workers: int = 1,
        *,
        transform: Transform | None = None,
        node: str | None = None,
        begin: Begin | None = None,
    ) -> None:
        token = secrets.token_hex(16)
        pool = WorkerPool(
            name,
            _make_worker,
            args=(as_layout(layout), config, token, transform, begin),
            num_workers=num_workers,
            max_concurrency=_CONCURRENCY,
            node=node or ray.get_runtime_context().get_node_id(),
        )
        self._adopt(pool, pool.call("describe_buffer"), tuple(range(num_workers)))
        # Whoever has the memory open keeps it from being swept away while a worker is replaced.
        for worker in pool.near():
            self._connections.get(worker)

    def _adopt(
        self, pool: WorkerPool, description: BufferDescription, own: tuple[int, ...]
    ) -> None:
        self._pool = pool
        self._description = description
        self._rules = description.rules
        self._layout = description.layout
        self._own = own
        """Workers that this handle pops from."""
        self._lengths = SegmentLengths(self._layout) if self._rules.by_steps else None
        self._connections = WorkerConnections(pool, description)

    @classmethod
    def get(cls, name: str) -> RemoteBuffer:
        """Look up a buffer by name.

        Raises:
            NotFoundError: there is none.
        """
        pool = WorkerPool.get(name)
        return _restore(pool, pool.call("describe_buffer", again=True), tuple(range(pool.size)))

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._pool, self._description, self._own)

    def shard(self, rank: int, size: int) -> RemoteBuffer:
        """Return a handle that pops from every `size`-th worker alone, beginning with `rank`.

        Raises:
            ConfigError: there are fewer workers than shards.
        """
        own = self._own[rank::size]
        if not own or not 0 <= rank < size:
            raise ConfigError(
                f"shard: rank {rank} of {size} has none of the buffer's {len(self._own)} workers: "
                f"make it with num_workers={size} or more"
            )
        return _restore(self._pool, self._description, own)

    @property
    def layout(self) -> Layout:
        """The packed layout of one segment."""
        return self._layout

    @property
    def batch_layout(self) -> Layout:
        """The packed layout of a batch's rows."""
        return self._description.batch_layout

    # Producers.

    def push(
        self, *segments: Packed | Nested, wait: bool = False, timeout_s: float | None = None
    ) -> int:
        """Add segments and return how many were accepted; errors as in `Buffer.push`.

        From another node, without `wait`, the number returned is what was sent: what finds no room
        there is counted in `stats()["dropped"]`, and what was on its way to a worker that dies as
        `buffer/lost_segments`.
        """
        parts = [self._part(segment) for segment in segments]  # all are checked before any is sent
        deadline = deadline_after(timeout_s)
        accepted = wanted = 0
        for count, write, steps in parts:
            wanted += count
            accepted += self._push_part(count, write, steps, deadline if wait else 0.0)
        if wait and accepted < wanted and self._rules.when_full == "block":
            raise self._no_room(timeout_s, accepted, wanted)
        return accepted

    def _part(self, segment: Packed | Nested) -> tuple[int, Write, Sequence[int] | None]:
        """Return a segment's number of rows, what writes them, and their steps where they count."""
        if isinstance(segment, Packed) or self._lengths:
            rows = as_rows(self._layout, segment)
            return len(rows), copying(rows), self._steps(rows)
        nested.check(segment, self._layout.spec, (), "segment")
        return 1, partial(_pack, self._layout, segment), None

    def _steps(self, rows: Block) -> Sequence[int] | None:
        return self._lengths.of(rows) if self._lengths else None

    def _push_part(
        self, count: int, write: Write, steps: Sequence[int] | None, deadline: float
    ) -> int:
        while True:
            worker = self._connections.with_most_room()
            wait_s = min(max(0.0, deadline - time.monotonic()), _FOR_EVER_S)
            try:
                return self._connections.get(worker).push(count, write, steps, wait_s)
            except WorkerLostError as error:
                self._connections.drop(worker, error)
                if time.monotonic() >= deadline:
                    metrics.record("buffer/lost_segments", count, kind="count")
                    return 0
                time.sleep(_RETRY_S)
            except ClosedError:
                raise self._connections.closed_error() from None

    def flush(self) -> None:
        """Wait until what was pushed has arrived at the workers."""
        self._connections.flush()

    async def push_async(
        self, *segments: Packed | Nested, wait: bool = False, timeout_s: float | None = None
    ) -> int:
        """`push` that lets the event loop go on while it waits; a cancelled one pushed a part."""
        deadline = deadline_after(timeout_s)
        if not segments:
            return 0
        rows = np.concatenate([as_rows(self._layout, segment) for segment in segments])
        accepted = self.push(Packed(self._layout, rows))
        waits = wait and self._rules.when_full == "block"
        while waits and accepted < len(rows):
            if time.monotonic() >= deadline:
                raise self._no_room(timeout_s, accepted, len(rows))
            await asyncio.sleep(_PAUSE_S)
            accepted += self.push(Packed(self._layout, rows[accepted:]))
        return accepted

    def _no_room(self, timeout_s: float | None, accepted: int, wanted: int) -> DeadlineError:
        return DeadlineError(
            f"buffer {self._pool.name}: push found no room within {timeout_s or 0:g} s, "
            f"{accepted} of {wanted} segments were accepted: the trainer does not keep up"
        )

    # Consumers.

    def pop(self, timeout_s: float | None = None) -> Packed:
        """Return the next batch of one worker, `[B, nbytes]`.

        Raises:
            DeadlineError: no batch within `timeout_s`.
            ClosedError: the buffer was closed.
            BrayError: a transform, or a limit in the worker, failed.
        """
        deadline = deadline_after(timeout_s)
        while True:
            batch = self._pop_once(min(deadline, time.monotonic() + _SLICE_S))
            if batch is not None:
                return batch
            if time.monotonic() >= deadline:
                raise self._no_batch(timeout_s)
            if len(self._own) > 1:
                time.sleep(_PAUSE_S)

    async def pop_async(self, timeout_s: float | None = None) -> Packed:
        """`pop` that lets the event loop go on while it waits; a cancelled one loses nothing."""
        deadline = deadline_after(timeout_s)
        while (batch := self._pop_once(0.0)) is None:
            if time.monotonic() >= deadline:
                raise self._no_batch(timeout_s)
            await asyncio.sleep(_PAUSE_S)
        return batch

    def _pop_once(self, deadline: float) -> Packed | None:
        """Look at each of this handle's workers; where it has but one, until the deadline."""
        self._connections.check_open()
        first = self._connections.next_turn()
        until = deadline if len(self._own) == 1 else 0.0
        for offset in range(len(self._own)):
            worker = self._own[(first + offset) % len(self._own)]
            block = self._connections.take(worker, until)
            if block is not None:
                return Packed(self.batch_layout, block)
        return None

    def _no_batch(self, timeout_s: float | None) -> DeadlineError:
        found = [self._connections.opened.get(worker) for worker in self._own]
        shared = [one.outbox.progress() for one in found if isinstance(one, SharedMemoryConnection)]
        return DeadlineError(
            f"buffer {self._pool.name}: no batch within {timeout_s or 0:g} s: "
            f"{'; '.join(shared) or 'nothing came from its workers'}"
        )

    def update_priorities(self, keys: npt.NDArray[np.int64], priorities: npt.NDArray[Any]) -> None:
        """Set the priorities `[B]` of what a batch's leaf `key [B]` names; soon, not at once.

        Those that a worker takes in too late, such as one that is being replaced, are counted as
        `buffer/lost_priorities`.

        Raises:
            ConfigError: this handle pops from several workers, each of which numbers its own keys.
        """
        if len(self._own) > 1:
            raise ConfigError(
                f"update_priorities: expected a handle of one worker, this one has "
                f"{len(self._own)}: take shard(rank, size), or num_workers=1"
            )
        rows = np.empty(len(keys), PRIORITY)
        rows["key"], rows["priority"] = keys, priorities
        worker = self._own[0]
        connection = self._connections.get(worker)
        if isinstance(connection, SharedMemoryConnection):
            connection.update_priorities(rows)
        else:
            self._pool.submit("call_own", "update_priorities", keys, priorities, worker=worker)

    def set_policy_version(self, version: int) -> None:
        """Tell the workers the newest policy version, for `max_policy_lag`."""
        for worker, connection in enumerate(self._connections.get_all()):
            if isinstance(connection, SharedMemoryConnection):
                connection.inbox.set_word("policy_version", version)
            else:
                self._pool.submit("set_policy_version", version, worker=worker)

    # Workers.

    def stats(self) -> dict[str, float]:
        """Return the sums over all workers; errors as in `Buffer.stats`."""
        totals: dict[str, float] = {}
        for figures in self._figures():
            for name, value in figures.items():
                totals[name] = totals.get(name, 0.0) + value
        return totals

    def _figures(self) -> list[dict[str, float]]:
        found = self._connections.get_all()
        shared = [one.inbox for one in found if isinstance(one, SharedMemoryConnection)]
        if self._rules.is_direct and len(shared) == len(found):
            return [pool.stats() for pool in shared]  # also while a worker is being replaced
        return self._pool.call_all("stats", timeout_s=_ANSWER_TIMEOUT_S, again=True)

    def save(self, path: Path) -> None:
        """Write each worker's content to a file of the folder `path`, whole or not at all each.

        Raises:
            WorkerLostError: a worker died meanwhile; the others have written theirs.
        """
        Path(path).mkdir(parents=True, exist_ok=True)
        lost: WorkerLostError | None = None
        for ref in self._on_files("save", path):
            try:
                self._pool.result(ref, _FILE_TIMEOUT_S)
            except WorkerLostError as error:
                lost = error
        if lost is not None:
            raise lost

    def load(self, path: Path) -> int:
        """Push what `save` wrote, each worker its own, and return how many segments were accepted.

        Workers beyond those saved stay as they are.

        Raises:
            NotFoundError: there is no such folder.
            SpecError: a file is broken, or holds another layout.
        """
        first, *others = self._on_files("load", path)
        count = int(self._pool.result(first, _FILE_TIMEOUT_S))
        for ref in others:
            with contextlib.suppress(NotFoundError):  # saved by fewer workers
                count += self._pool.result(ref, _FILE_TIMEOUT_S)
        return count

    def _on_files(self, method: str, path: Path) -> list[Any]:
        return [
            self._pool.submit(method, Path(path) / f"{worker}.buffer", worker=worker)
            for worker in range(self._pool.size)
        ]

    def begin(self) -> None:
        """Let each worker fill its replay by the function `begin`, if it holds nothing."""
        refs = [self._pool.submit("begin", worker=worker) for worker in range(self._pool.size)]
        for ref in refs:
            self._pool.result(ref, _FILE_TIMEOUT_S)

    def state_dict(self) -> dict[str, Any]:
        """Return the small states of the workers' buffers."""
        states = self._pool.call_all("state_dict", timeout_s=_ANSWER_TIMEOUT_S, again=True)
        return {"workers": states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned, here or of a buffer in one process.

        Workers beyond those saved keep theirs.
        """
        for worker, own in enumerate(worker_states(state)[: self._pool.size]):
            self._pool.call("load_state_dict", own, worker=worker, again=True)

    def close(self) -> None:
        """End the workers; whoever waits for them, in any process, gets ClosedError."""
        if self._pool.size and ray.is_initialized():
            with contextlib.suppress(WorkerLostError, DeadlineError):
                self._pool.call_all("close", timeout_s=_CLOSE_TIMEOUT_S)
        self._connections.close()
        self._pool.close()


def _pack(layout: Layout, segment: Nested, target: Block, _: int) -> None:
    layout.pack(segment, out=target[0])


def _restore(
    pool: WorkerPool, description: BufferDescription, own: tuple[int, ...]
) -> RemoteBuffer:
    buffer = RemoteBuffer.__new__(RemoteBuffer)
    buffer._adopt(pool, description, own)
    return buffer
