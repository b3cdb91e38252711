"""A buffer in workers on Ray: segments in from anywhere, batches out on the workers' node."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import ray
import ray.util

from bray_buffer.cursor import of_workers
from bray_buffer.lengths import Lengths
from bray_buffer.ring import as_layout, as_rows
from bray_buffer.shared.link import CallLink, Link, SharedLink, SocketLink
from bray_buffer.shared.pump import PRIORITY
from bray_buffer.shared.slot_pool import Write, copying, deadline_after
from bray_buffer.shared.terms import Config, Description
from bray_buffer.shared.worker import BufferWorker
from bray_core import metrics, nested
from bray_core.errors import (
    BrayError,
    ClosedError,
    ConfigError,
    DeadlineError,
    NotFoundError,
    WorkerLostError,
)
from bray_core.layout import Block, Layout, Packed
from bray_core.nested import Nested
from bray_core.remote.calls import died_for_good
from bray_core.remote.pool import WorkerPool
from bray_core.remote.worker_process import worker_index

logger = logging.getLogger(__name__)

Transform = Callable[[Nested], Nested]

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
    layout: Layout, config: Config, token: str, transform: Transform | None
) -> BufferWorker:
    host = ray.util.get_node_ip_address()
    return BufferWorker(layout, config, token, worker_index(), host, transform)


class RemoteBuffer:
    """A handle over buffer workers; it can be sent to other processes, on any node.

    Producers of the workers' node write segments straight into batches in shared memory, those of
    other nodes send them through a socket, or by calls on Ray where none can be opened. Consumers
    of that node take batches where they lie: a batch's memory goes back when its last view is
    garbage.

    A worker that dies is replaced; of a queue nothing is lost with it, of a replay its content,
    which is counted in `stats()["lost"]`.

    Args:
        name: of the pool.
        layout: of one segment, or its spec.
        config: of a queue or a replay; each worker holds `capacity` of its own.
        num_workers: each batch comes from one worker; a push goes to the one with the most room.
        transform: as for `Buffer`; runs in the workers.
        node: Ray's id of the node where workers and consumers are; by default this one.

    Raises:
        AlreadyExistsError: there is a pool of that name.
        WorkerLostError: a worker could not start, such as for lack of shared memory; quotes why.
    """

    def __init__(
        self,
        name: str,
        layout: Layout | Nested,
        config: Config,
        num_workers: int = 1,
        *,
        transform: Transform | None = None,
        node: str | None = None,
    ) -> None:
        token = secrets.token_hex(16)
        pool = WorkerPool(
            name,
            _make_worker,
            args=(as_layout(layout), config, token, transform),
            num_workers=num_workers,
            max_concurrency=_CONCURRENCY,
            node=node or ray.get_runtime_context().get_node_id(),
        )
        self._adopt(pool, pool.call("describe_buffer"), tuple(range(num_workers)))
        # Whoever has the memory open keeps it from being swept away while a worker is replaced.
        for worker in pool.near():
            self._links[worker] = self._connect(worker)

    def _adopt(self, pool: WorkerPool, description: Description, own: tuple[int, ...]) -> None:
        self._pool = pool
        self._description = description
        self._layout = description.layout
        self._own = own
        """Workers that this handle pops from."""
        self._lengths = Lengths(self._layout) if description.terms.by_steps else None
        self._connecting = threading.Lock()
        self._links: dict[int, Link] = {}
        self._turn = itertools.count()
        self._failures: dict[int, int] = {}

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
        if wait and accepted < wanted and self._description.terms.when_full == "block":
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
            worker = self._choose()
            wait_s = min(max(0.0, deadline - time.monotonic()), _FOR_EVER_S)
            try:
                return self._link(worker).push(count, write, steps, wait_s)
            except WorkerLostError as error:
                self._disconnect(worker, error)
                if time.monotonic() >= deadline:
                    metrics.record("buffer/lost_segments", count, kind="count")
                    return 0
                time.sleep(_RETRY_S)
            except ClosedError:
                raise self._closed() from None

    def _choose(self) -> int:
        """Return the worker with more room of two that take turns."""
        size = self._pool.size
        if size <= 1:
            self._check_open()
            return 0
        first = next(self._turn) % size
        second = (first + 1) % size
        return max((first, second), key=lambda worker: self._link(worker).num_free())

    def flush(self) -> None:
        """Wait until what was pushed has arrived at the workers."""
        for worker, link in list(self._links.items()):
            try:
                link.flush()
            except (WorkerLostError, OSError) as error:
                self._disconnect(worker, error)
            except ClosedError:
                raise self._closed() from None

    async def push_async(
        self, *segments: Packed | Nested, wait: bool = False, timeout_s: float | None = None
    ) -> int:
        """`push` that lets the event loop go on while it waits; a cancelled one pushed a part."""
        deadline = deadline_after(timeout_s)
        if not segments:
            return 0
        rows = np.concatenate([as_rows(self._layout, segment) for segment in segments])
        accepted = self.push(Packed(self._layout, rows))
        waits = wait and self._description.terms.when_full == "block"
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
            BrayError: what a transform or a limit in the worker failed with.
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
        self._check_open()
        first = next(self._turn)
        for offset in range(len(self._own)):
            worker = self._own[(first + offset) % len(self._own)]
            try:
                link = self._link(worker)
                block = link.take(deadline if len(self._own) == 1 else 0.0)
                if block is not None:
                    return Packed(self.batch_layout, block)
                self._raise_failure(worker, link)
            except WorkerLostError as error:
                self._disconnect(worker, error)
            except ClosedError:
                raise self._closed() from None
        return None

    def _raise_failure(self, worker: int, link: Link) -> None:
        if not isinstance(link, SharedLink) or self._description.terms.is_direct:
            return
        failures = link.outbox.word("failures")
        if failures > self._failures.get(worker, 0):
            self._failures[worker] = failures
            failure = self._pool.call("next_failure", worker=worker)
            if failure is not None:
                raise BrayError(f"buffer {self._pool.name}: {failure}")

    def _no_batch(self, timeout_s: float | None) -> DeadlineError:
        links = [self._links.get(worker) for worker in self._own]
        shared = [link.outbox.progress() for link in links if isinstance(link, SharedLink)]
        return DeadlineError(
            f"buffer {self._pool.name}: no batch within {timeout_s or 0:g} s: "
            f"{'; '.join(shared) or 'nothing came from its workers'}"
        )

    def __iter__(self) -> Iterator[Packed]:
        """Yield batches until the buffer is closed."""
        while True:
            try:
                yield self.pop()
            except ClosedError:
                return

    async def __aiter__(self) -> AsyncIterator[Packed]:
        """Yield batches until the buffer is closed."""
        while True:
            try:
                yield await self.pop_async()
            except ClosedError:
                return

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
        link = self._link(worker)
        if isinstance(link, SharedLink):
            link.update_priorities(rows)
        else:
            self._pool.submit("call_own", "update_priorities", keys, priorities, worker=worker)

    def set_policy_version(self, version: int) -> None:
        """Tell the workers the newest policy version, for `max_policy_lag`."""
        for worker in range(self._pool.size):
            link = self._link(worker)
            if isinstance(link, SharedLink):
                link.inbox.set_word("policy_version", version)
            else:
                self._pool.submit("set_policy_version", version, worker=worker)

    # Workers.

    def _link(self, worker: int) -> Link:
        link = self._links.get(worker)
        if link is None:
            with self._connecting:
                link = self._links.get(worker)
                if link is None:
                    link = self._links[worker] = self._connect(worker)
        return link

    def _connect(self, worker: int) -> Link:
        self._check_open()
        if worker in self._pool.near():
            with contextlib.suppress(NotFoundError):  # such as in a container of its own
                return SharedLink(self._description, worker)
        try:
            address = self._pool.call("listen", worker=worker, again=True)
            return SocketLink(self._pool, worker, address, self._description)
        except OSError as error:
            logger.warning(
                "buffer %s: no socket to worker %d (%s): goes by Ray, which is slower",
                self._pool.name,
                worker,
                error,
            )
            return CallLink(self._pool, worker, self._layout)

    def _disconnect(self, worker: int, error: Exception) -> None:
        """Forget a link that failed, or raise ClosedError if its worker does not come back.

        One that died too often is no closed buffer: its error says of what.
        """
        if isinstance(error, WorkerLostError) and died_for_good(error):
            raise error
        if isinstance(error.__cause__, ray.exceptions.ActorDiedError):
            raise self._closed() from error
        logger.warning("buffer %s: worker %d is lost: %s", self._pool.name, worker, error)
        link = self._links.pop(worker, None)
        if link is not None:
            link.close()

    def _check_open(self) -> None:
        if not self._pool.size:
            raise self._closed()

    def _closed(self) -> ClosedError:
        return ClosedError(f"buffer {self._pool.name}: closed")

    def stats(self) -> dict[str, float]:
        """Return the sums over all workers; errors as in `Buffer.stats`."""
        totals: dict[str, float] = {}
        for figures in self._figures():
            for name, value in figures.items():
                totals[name] = totals.get(name, 0.0) + value
        return totals

    def _figures(self) -> list[dict[str, float]]:
        links = [self._link(worker) for worker in range(self._pool.size)]
        shared = [link.inbox for link in links if isinstance(link, SharedLink)]
        if self._description.terms.is_direct and len(shared) == len(links):
            return [pool.stats() for pool in shared]  # also while a worker is being replaced
        return self._pool.call_all("stats", timeout_s=_ANSWER_TIMEOUT_S, again=True)

    def save(self, path: Path) -> None:
        """Write each worker's content to a file of the folder `path`, whole or not at all each."""
        Path(path).mkdir(parents=True, exist_ok=True)
        self._on_files("save", path)

    def load(self, path: Path) -> int:
        """Push what `save` wrote, each worker its own, and return how many segments were accepted.

        Raises:
            NotFoundError: there is no such folder, or of fewer workers.
            SpecError: a file is broken, or holds another layout.
        """
        return sum(self._on_files("load", path))

    def _on_files(self, method: str, path: Path) -> list[Any]:
        refs = [
            self._pool.submit(method, Path(path) / f"{worker}.buffer", worker=worker)
            for worker in range(self._pool.size)
        ]
        return [self._pool.result(ref, _FILE_TIMEOUT_S) for ref in refs]

    def state_dict(self) -> dict[str, Any]:
        """Return the workers' cursors."""
        cursors = self._pool.call_all("cursor", timeout_s=_ANSWER_TIMEOUT_S, again=True)
        return {"workers": cursors}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned, here or of a buffer in one process.

        Workers beyond those saved keep theirs.
        """
        for worker, cursor in enumerate(of_workers(state)[: self._pool.size]):
            self._pool.call("set_cursor", cursor, worker=worker, again=True)

    def close(self) -> None:
        """End the workers; whoever waits for them, in any process, gets ClosedError."""
        if self._pool.size and ray.is_initialized():
            with contextlib.suppress(WorkerLostError, DeadlineError):
                self._pool.call_all("close", timeout_s=_CLOSE_TIMEOUT_S)
        for link in self._links.values():
            if isinstance(link, SharedLink):
                link.remove()
            link.close()
        self._links = {}
        self._pool.close()


def _pack(layout: Layout, segment: Nested, target: Block, _: int) -> None:
    layout.pack(segment, out=target[0])


def _restore(pool: WorkerPool, description: Description, own: tuple[int, ...]) -> RemoteBuffer:
    buffer = RemoteBuffer.__new__(RemoteBuffer)
    buffer._adopt(pool, description, own)
    return buffer
