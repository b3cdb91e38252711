"""A buffer in a process of its own, which owns the shared memory that others write and read."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bray_buffer import storage
from bray_buffer.config import BufferConfig
from bray_buffer.factory import make_buffer
from bray_buffer.replay.replay_buffer import ReplayBuffer
from bray_buffer.replay.replay_config import ReplayConfig
from bray_buffer.segment_lengths import SegmentLengths
from bray_buffer.shared.sharing_rules import (
    BufferDescription,
    PlainBufferConfig,
    SharedMemoryNames,
    SharingRules,
    push_rows,
)
from bray_buffer.shared.slot_pool import PoolShape, SlotPool, Write, copying, deadline_after
from bray_buffer.shared.socket_carrier import SegmentListener
from bray_buffer.shared.transfer_thread import PRIORITY, TransferThread
from bray_core import metrics
from bray_core.errors import BrayError, ConfigError
from bray_core.files.shared_file import FOLDER, SharedFile
from bray_core.layout import Block, Layout
from bray_core.nested import Nested

logger = logging.getLogger(__name__)

_CLEAN_UP_EVERY_S = 0.5
_MAX_QUEUED_BY_STEPS = 2
_INBOX_NBYTES = 4 << 20
"""Size of a slot in which segments wait for the transfer thread; a large one spreads its cost."""
_MAX_INBOX_ROWS = 256
_QUEUED_IN_OR_OUT = 3
_PRIORITY_ROWS = 4096


class BufferWorker:
    """Runs a buffer in one worker process; it takes over the memory that a dead worker left.

    Args:
        layout: Packed layout of one segment.
        config: Settings of the buffer.
        token: Secret of the buffer; whoever has it may connect.
        index: Number of this worker.
        host: Address at which other nodes reach this one.
        transform: Function that every batch goes through.
        begin: Function that fills a replay which holds nothing: called by `begin`, and at once
            where this worker takes the place of a dead one.
    """

    def __init__(
        self,
        layout: Layout,
        config: PlainBufferConfig,
        token: str,
        index: int,
        host: str,
        transform: Callable[[Nested], Nested] | None = None,
        begin: Callable[[ReplayBuffer], object] | None = None,
    ) -> None:
        self.layout = layout
        self._config = config
        self._token = token
        self._host = host
        self._rules = SharingRules.of(config, transform is not None)
        self._lengths = SegmentLengths(layout) if self._rules.by_steps else None
        self._names = SharedMemoryNames.of(token, index, self._rules)
        self._buffer = None if self._rules.is_direct else make_buffer(layout, config, transform)
        self.batch_layout: Layout = self._buffer.batch_layout if self._buffer else layout
        self._begin = begin
        is_successor = (FOLDER / self._names.inbox).exists()
        self._open_pools()
        self._transfer = (
            TransferThread(
                self._buffer,
                self._inbox,
                self._outbox,
                self._priorities,
                is_successor=is_successor,
            )
            if self._buffer
            else None
        )
        if is_successor:
            self.begin()
        self._listener: SegmentListener | None = None
        self._stopped = threading.Event()
        self._cleaner = threading.Thread(
            target=self._clean_up_often, name="bray-clean-up", daemon=True
        )
        self._cleaner.start()

    def _open_pools(self) -> None:
        self._inbox = self._outbox = _open_or_create(self._names.inbox, self._inbox_shape())
        self._recorded = self._inbox.stats()  # a dead worker recorded what is there
        self._priorities = None
        if not self._buffer:
            return
        shape = PoolShape(
            row_nbytes=self.batch_layout.nbytes,
            rows=self._buffer.max_batch_rows,
            max_queued=_QUEUED_IN_OR_OUT,
        )
        self._outbox = _open_or_create(self._names.outbox, shape)
        self._inbox.lose_held()
        if self._rules.is_prioritized:
            shape = PoolShape(
                row_nbytes=PRIORITY.itemsize, rows=_PRIORITY_ROWS, max_queued=_QUEUED_IN_OR_OUT
            )
            self._priorities = _open_or_create(self._names.priorities, shape)

    def _inbox_shape(self) -> PoolShape:
        nbytes, config = self.layout.nbytes, self._config
        if self._buffer or not isinstance(config, BufferConfig):
            rows = min(_MAX_INBOX_ROWS, _INBOX_NBYTES // nbytes, self._most_ahead())
            return PoolShape(row_nbytes=nbytes, rows=max(1, rows), max_queued=_QUEUED_IN_OR_OUT)
        if config.batch_size is not None:
            queued = -(-config.capacity // config.batch_size)
            return PoolShape(row_nbytes=nbytes, rows=config.batch_size, max_queued=queued)
        return PoolShape(
            row_nbytes=nbytes,
            rows=config.capacity,
            max_queued=_MAX_QUEUED_BY_STEPS,
            batch_steps=config.batch_steps or 0,
        )

    def _most_ahead(self) -> int:
        """Return how many segments a slot before the replay may hold; all slots hold its margin.

        Without this, producers would be ahead of the rate by all that the slots hold.
        """
        config = self._config
        if not isinstance(config, ReplayConfig) or config.samples_per_insert is None:
            return _MAX_INBOX_ROWS
        items = (config.error_margin or 0.0) / config.samples_per_insert
        per_segment = 1 if config.unit == "segment" else self.layout.spec["reward"].shape[0]
        return int(items / per_segment) // _QUEUED_IN_OR_OUT

    def _clean_up_often(self) -> None:
        """Free what dead processes held, and record what became of segments."""
        while not self._stopped.wait(_CLEAN_UP_EVERY_S):
            try:
                for pool in (self._inbox, self._outbox):
                    pool.reclaim()
                self._record()
            except BrayError as error:
                logger.warning("buffer: its worker could not clean up: %s", error)

    def _record(self) -> None:
        stats = self.stats()
        for figure in ("dropped", "lost", "stale"):
            new = stats[figure] - self._recorded[figure]
            if new > 0:
                metrics.record(f"buffer/{figure}_segments", new, kind="count")
        metrics.record("buffer/queued_segments", stats["queued"], kind="last")
        self._recorded = stats

    # What handles ask.

    def describe_buffer(self) -> BufferDescription:
        """Return what handles need to know."""
        return BufferDescription(self.layout, self.batch_layout, self._rules, self._token)

    def listen(self) -> tuple[str, int]:
        """Listen for producers of other nodes; return where."""
        if self._listener is None:
            self._listener = SegmentListener(
                self._host, self._token, self.layout.nbytes, self.receive
            )
        return self._listener.address

    def push(self, block: Block, wait_s: float) -> tuple[int, int]:
        """Push rows that came by a call; return how many found room, and how many more would."""
        steps = self._lengths.of(block) if self._lengths else None
        return self._push(len(block), copying(block), steps, wait_s)

    def receive(
        self, count: int, wait_s: float, read_into: Callable[[Block], None]
    ) -> tuple[int, int]:
        """`push` for rows that come by a socket: read into their place where that is known."""
        if self._lengths:  # how many rows a batch has depends on what is in them
            block = np.empty((count, self.layout.nbytes), np.uint8)
            read_into(block)
            return self.push(block, wait_s)
        answer = self._push(count, lambda rows, _: read_into(rows), None, wait_s)
        # Rows without room are read all the same: the next push follows them in the stream.
        for _ in range(count - answer[0]):
            read_into(np.empty((1, self.layout.nbytes), np.uint8))
        return answer

    def _push(
        self,
        count: int,
        write: Write,
        steps: Sequence[int] | None,
        wait_s: float,
    ) -> tuple[int, int]:
        accepted = push_rows(self._inbox, self._rules, count, write, steps, wait_s)
        if wait_s <= 0:
            self._count_refused(count - accepted)
        return accepted, self._inbox.num_free()

    def _count_refused(self, count: int) -> None:
        """Count what nobody waited for and nobody keeps; a queue that drops has counted it."""
        if count and self._rules.when_full == "block":
            self._inbox.add("dropped", count)

    def pop(self, timeout_s: float) -> Block | str:
        """Return a copy of a batch for a consumer of another node, or why there is none."""
        block = self._outbox.take(deadline_after(timeout_s))
        return self._outbox.progress() if block is None else block.copy()

    def stats(self) -> dict[str, float]:
        """Return the buffer's figures."""
        stats = self._inbox.stats()
        if self._buffer is None:
            return stats
        own = self._buffer.stats()
        return {
            **own,
            "popped": self._outbox.stats()["popped"],
            **{name: own.get(name, 0) + stats[name] for name in ("dropped", "lost", "stale")},
            "queued": own["queued"],
            "pushed": stats["pushed"],
        }

    def next_failure(self) -> str | None:
        """Return the error of the transfer thread that was not told yet, if there is one."""
        return self._transfer.next_failure() if self._transfer else None

    def save(self, path: Path) -> None:
        """Write what is held to a file, whole or not at all."""
        if self._buffer is None or self._transfer is None:
            storage.save(path, self.layout, self._inbox.take_queued())
            return
        with self._transfer.lock:
            self._buffer.save(path)

    def load(self, path: Path) -> int:
        """Push what `save` wrote, and return how many segments that were."""
        if self._buffer is not None and self._transfer is not None:
            with self._transfer.lock:
                return int(self._buffer.load(path))
        _, _, chunks = storage.load(path, self.layout)
        return sum(self.push(chunk, 0.0)[0] for chunk in chunks)

    def begin(self) -> None:
        """Fill a replay that holds nothing with what it begins with."""
        if self._begin is None or not isinstance(self._buffer, ReplayBuffer):
            return
        if self._transfer is not None:
            with self._transfer.lock:
                if not self._buffer.stats()["queued"]:
                    self._begin(self._buffer)

    def state_dict(self) -> dict[str, Any]:
        """Return the buffer's small state."""
        return dict(self._buffer.state_dict()) if self._buffer else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the small state of the buffer."""
        if self._buffer:
            self._buffer.load_state_dict(state)

    def set_policy_version(self, version: int) -> None:
        """Take in the newest version, from a trainer of another node."""
        self._inbox.set_word("policy_version", version)

    def call_own(self, method: str, *args: Any) -> Any:
        """Call a method of the plain buffer between two of the transfer thread's turns."""
        if self._buffer is None or self._transfer is None:
            raise ConfigError(f"buffer: a queue has no {method}")
        with self._transfer.lock:
            return getattr(self._buffer, method)(*args)

    def close(self) -> None:
        """Wake every waiter in every process, and remove the memory's names."""
        self._stopped.set()
        self._cleaner.join()
        if self._listener:
            self._listener.close()
        pools = self._inbox, self._outbox, self._priorities or self._inbox
        for pool in dict.fromkeys(pools):  # in order: who is woken finds nothing open any more
            pool.close()
        if self._transfer:
            self._transfer.stop()


def _open_or_create(name: str, shape: PoolShape) -> SlotPool:
    path = FOLDER / name
    return SlotPool.open(SharedFile.open(path)) if path.exists() else SlotPool.create(name, shape)
