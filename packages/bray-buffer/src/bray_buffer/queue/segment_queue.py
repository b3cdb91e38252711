"""The queue without its lock: its content, when a batch is ready, what is dropped and counted."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import numpy.typing as npt

from bray_buffer.config import BufferConfig
from bray_buffer.queue.policy_lag import PolicyLag
from bray_buffer.queue.segment_batcher import SegmentBatcher
from bray_buffer.queue.segment_ring import SegmentRing
from bray_buffer.segment_lengths import SegmentLengths, is_scalar_length
from bray_core import metrics
from bray_core.layout import Block, Layout


class SegmentQueue:
    """A bounded first-in-first-out queue of rows. It knows neither locks nor waiting.

    Args:
        layout: Packed layout of one segment.
        config: Settings: batch size, capacity, what happens when the queue is full.
    """

    def __init__(self, layout: Layout, config: BufferConfig) -> None:
        self._config = config
        self._is_by_steps = config.batch_steps is not None
        self._lengths = _lengths(layout, config)
        lag = config.max_policy_lag
        self._lag = PolicyLag(layout, lag) if lag is not None else None
        self._batcher = SegmentBatcher(layout, mask=config.mask, without_time=config.without_time)
        self.batch_layout = self._batcher.layout
        """Packed layout of a row of a batch."""
        self.ring = SegmentRing(layout, config.capacity)
        self._queued_steps = 0
        self._counts = {"pushed": 0, "popped": 0, "dropped": 0}
        if self._lag:
            self._counts["stale"] = 0

    def check(self, block: Block) -> None:
        """Raise SpecError if a row's `length` is out of range."""
        if self._lengths:
            self._lengths.of(block)

    def add(self, block: Block) -> int:
        """Add the first rows of a block, as many as there is room for, and return how many."""
        if self._lag and (stale := self._lag.is_stale(block)).any():
            return self._add_fresh(block, stale)
        capacity = self._config.capacity
        room = capacity - self.ring.size
        if len(block) <= room:
            return self._append(block)
        if self._config.when_full != "drop_oldest":
            return self._append(block[:room])
        # A push larger than the queue replaces it, piece by piece.
        for start in range(0, len(block), capacity):
            piece = block[start : start + capacity]
            overwritten = max(0, self.ring.size + len(piece) - capacity)
            self._remove(overwritten)
            self.count_dropped(overwritten)
            self._append(piece)
        return len(block)

    def _add_fresh(self, block: Block, stale: npt.NDArray[np.bool_]) -> int:
        """Add a block of which some rows are stale: these are taken, counted and dropped."""
        for row, is_stale in enumerate(stale):
            if is_stale:
                self._counts["pushed"] += 1
                self._count_stale(1)
            elif not self.add(block[row : row + 1]):
                return row
        return len(block)

    def _append(self, rows: Block) -> int:
        self.ring.extend(rows)
        if self._is_by_steps:
            self._queued_steps += self._steps([rows])
        self._counts["pushed"] += len(rows)
        return len(rows)

    def _remove(self, count: int) -> None:
        if self._is_by_steps:
            self._queued_steps -= self._steps(self.ring.parts(count))
        self.ring.drop(count)

    def _steps(self, parts: list[Block]) -> int:
        """Return the sum of the segments' lengths."""
        assert self._lengths is not None
        return sum(sum(self._lengths.of(part)) for part in parts)

    def count_dropped(self, count: int) -> None:
        """Count segments that were dropped because the queue is full."""
        if count:
            self._counts["dropped"] += count
            metrics.record("buffer/dropped_segments", count, kind="count")

    def _count_stale(self, count: int) -> None:
        if count:
            self._counts["stale"] += count
            metrics.record("buffer/stale_segments", count, kind="count")

    @property
    def version(self) -> int:
        """The newest policy version; 0 where it does not matter."""
        return self._lag.version if self._lag else 0

    def set_version(self, version: int) -> bool:
        """Set the newest policy version; return whether segments became stale and were dropped."""
        if not self._lag:
            return False
        self._lag.version = version
        fresh = ~np.concatenate([self._lag.is_stale(part) for part in self._queued()])
        if fresh.all():
            return False
        self._count_stale(int(self.ring.size - fresh.sum()))
        self.ring.keep(np.flatnonzero(fresh))
        if self._is_by_steps:
            self._queued_steps = self._steps(self._queued())
        return True

    def _queued(self) -> list[Block]:
        return self.ring.parts(self.ring.size)

    def take(self) -> Block | None:
        """Remove and return the next batch `[B, nbytes]`; None if there is none."""
        if not self._is_ready():
            return None
        count = self._batch_count()
        block = self._batcher(self.ring.parts(count))
        self._remove(count)
        self._counts["popped"] += count
        metrics.record("buffer/queued_segments", self.ring.size, kind="last")
        return block

    def _is_ready(self) -> bool:
        if self._config.batch_size is not None:
            return self.ring.size >= self._config.batch_size
        assert self._config.batch_steps is not None
        # A full queue is a batch, however short: a producer may wait for the room.
        is_full = self.ring.size == self._config.capacity
        return self._queued_steps >= self._config.batch_steps or is_full

    def _batch_count(self) -> int:
        if self._config.batch_size is not None:
            return self._config.batch_size
        assert self._config.batch_steps is not None
        assert self._lengths is not None
        most = min(self.ring.size, self._config.batch_steps)  # each has one step or more
        steps = accumulate(n for part in self.ring.parts(most) for n in self._lengths.of(part))
        return next((i for i, n in enumerate(steps, 1) if n >= self._config.batch_steps), most)

    def progress(self) -> str:
        """Return how much of a batch is there."""
        if self._config.batch_size is not None:
            return f"{self.ring.size} of {self._config.batch_size} segments are there"
        return f"{self._queued_steps} of {self._config.batch_steps} steps are there"

    def stats(self) -> dict[str, float]:
        """Return the counts, and how much is queued."""
        stats: dict[str, float] = {**self._counts, "queued": self.ring.size}
        if self._is_by_steps:
            stats["queued_steps"] = self._queued_steps
        return stats


def _lengths(layout: Layout, config: BufferConfig) -> SegmentLengths | None:
    """Return what checks lengths: needed for batches by steps, else where there are lengths."""
    needs = config.batch_steps is not None or is_scalar_length(layout)
    return SegmentLengths(layout) if needs else None
