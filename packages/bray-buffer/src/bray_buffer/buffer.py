"""A queue of segments: each is used once, in batches ready to train on."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bray_buffer import storage
from bray_buffer.config import BufferConfig
from bray_buffer.lengths import Lengths
from bray_buffer.ring import Ring, as_layout, as_rows
from bray_core import metrics
from bray_core.errors import ClosedError, DeadlineError
from bray_core.layout import Block, Layout, Packed
from bray_core.nested import Nested

_CHUNK_BYTES = 4 * 1024 * 1024
"""Copied at a time while the content is saved."""


class Buffer:
    """A bounded first-in-first-out queue. Thread-safe.

    Args:
        layout: of one segment, or its spec.
        config: batch size, capacity, what happens when the queue is full.

    Example:
        >>> import numpy as np
        >>> from bray_core import nested
        >>> segment = {"observation": np.zeros((8, 4), np.float32), "length": np.array(8)}
        >>> buffer = Buffer(nested.spec(segment), BufferConfig(batch_size=2))
        >>> buffer.push(segment, segment)
        2
        >>> buffer.pop().tree["observation"].shape
        (2, 8, 4)
    """

    def __init__(self, layout: Layout | Nested, config: BufferConfig) -> None:
        self._layout = as_layout(layout)
        self._config = config
        self._lengths = Lengths(self._layout) if config.batch_steps is not None else None
        self._ring = Ring(self._layout, config.capacity)
        self._chunk_rows = max(1, _CHUNK_BYTES // self._layout.nbytes)
        self._steps: deque[int] = deque()  # of each queued segment, if batches are by steps
        self._queued_steps = 0
        self._counts = {"pushed": 0, "popped": 0, "dropped": 0}
        self._changed = threading.Condition()
        self._closed = False

    @property
    def layout(self) -> Layout:
        """The packed layout of one segment."""
        return self._layout

    def push(
        self, *segments: Packed | Nested, wait: bool = False, timeout_s: float | None = None
    ) -> int:
        """Add segments and return how many were accepted.

        Args:
            segments: packed, or nested arrays of the buffer's spec.
            wait: with `when_full="block"`, wait for room; otherwise what finds no room is not
                accepted, and the caller keeps it.
            timeout_s: how long to wait at most; None waits until the buffer is closed.

        Raises:
            SpecError: a segment does not fit; nothing of this call was added.
            DeadlineError: no room within `timeout_s`; says how many were accepted before.
            ClosedError: the buffer was closed.
        """
        rows = [row for segment in segments for row in self._rows(segment)]
        with self._changed:
            accepted = self._offer(rows, _deadline(timeout_s) if wait else 0.0)
            if wait and accepted < len(rows) and self._config.when_full == "block":
                raise DeadlineError(
                    f"buffer: push found no room in time ({timeout_s:g} s): {accepted} of "
                    f"{len(rows)} segments were accepted: the trainer does not keep up"
                )
            if self._config.when_full == "drop_newest":
                self._count_dropped(len(rows) - accepted)
        return accepted

    def offer(self, packed: Packed, timeout_s: float) -> int:
        """Push what finds room in time, and return how many segments that were."""
        rows = self._rows(packed)
        with self._changed:
            return self._offer(rows, _deadline(timeout_s))

    def _rows(self, segment: Packed | Nested) -> list[tuple[Block, int]]:
        """Return the blocks of one or more segments, checked, with their valid steps."""
        block = as_rows(self._layout, segment)
        steps = self._lengths.of(block).tolist() if self._lengths else [0] * len(block)
        return list(zip(block, steps, strict=True))

    def _offer(self, rows: list[tuple[Block, int]], deadline: float | None) -> int:
        accepted = 0
        for row, steps in rows:
            if not self._make_room(deadline):
                break
            self._append(row, steps)
            accepted += 1
        self._changed.notify_all()
        return accepted

    def _make_room(self, deadline: float | None) -> bool:
        """Return whether a row may be appended; drops the oldest, or waits, as configured."""
        self._check_open()
        if self._has_room() or self._config.when_full == "drop_newest":
            return self._has_room()
        if self._config.when_full == "drop_oldest":
            self._remove(1)
            self._count_dropped(1)
            return True
        self._changed.notify_all()  # what was appended so far may be a batch
        left = None if deadline is None else deadline - time.monotonic()
        found = self._changed.wait_for(lambda: self._closed or self._has_room(), left)
        self._check_open()
        return found

    def _has_room(self) -> bool:
        return self._ring.size < self._config.capacity

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("buffer: closed")

    def _count_dropped(self, count: int) -> None:
        if count:
            self._counts["dropped"] += count
            metrics.record("buffer/dropped_segments", count, kind="count")

    def _append(self, row: Block, steps: int) -> None:
        self._ring.append(row)
        self._steps.append(steps)
        self._queued_steps += steps
        self._counts["pushed"] += 1

    def _remove(self, count: int) -> None:
        self._ring.drop(count)
        self._queued_steps -= sum(self._steps.popleft() for _ in range(count))

    def pop(self, timeout_s: float | None = None) -> Packed:
        """Return the next batch: whole segments in the order of their arrival, `[B, nbytes]`.

        Raises:
            DeadlineError: no batch within `timeout_s`.
            ClosedError: the buffer was closed.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._closed or self._is_ready(), timeout_s):
                raise DeadlineError(f"buffer: no batch within {timeout_s:g} s: {self._progress()}")
            self._check_open()
            count = self._batch_count()
            block = self._ring.oldest(count)
            self._remove(count)
            self._counts["popped"] += count
            metrics.record("buffer/queued_segments", self._ring.size, kind="last")
            self._changed.notify_all()
        return Packed(self._layout, block)

    def _is_ready(self) -> bool:
        if self._config.batch_size is not None:
            return self._ring.size >= self._config.batch_size
        assert self._config.batch_steps is not None
        # A full queue is a batch, however short: a producer may wait for the room.
        return self._queued_steps >= self._config.batch_steps or not self._has_room()

    def _batch_count(self) -> int:
        if self._config.batch_size is not None:
            return self._config.batch_size
        assert self._config.batch_steps is not None
        total = 0
        for count, steps in enumerate(self._steps, 1):
            total += steps
            if total >= self._config.batch_steps:
                return count
        return self._ring.size

    def _progress(self) -> str:
        if self._config.batch_size is not None:
            return f"{self._ring.size} of {self._config.batch_size} segments are there"
        return f"{self._queued_steps} of {self._config.batch_steps} steps are there"

    def __iter__(self) -> Iterator[Packed]:
        """Yield batches until the buffer is closed."""
        while True:
            try:
                yield self.pop()
            except ClosedError:
                return

    def stats(self) -> dict[str, float]:
        """Return segments `pushed`, `popped` and `dropped` so far, and `queued` now.

        Where batches are by steps, also `queued_steps`.
        """
        with self._changed:
            stats: dict[str, float] = {**self._counts, "queued": self._ring.size}
            if self._lengths is not None:
                stats["queued_steps"] = self._queued_steps
            return stats

    def save(self, path: Path) -> None:
        """Write what is queued to a file, whole or not at all.

        Pushes and pops go on meanwhile: what they add is not in the file, what they take may be.
        """
        storage.save(path, self._layout, self._chunks())

    def _chunks(self) -> Iterator[Block]:
        """Yield copies of what is queued now; what is gone when its turn comes is left out."""
        with self._changed:
            at, end = self._ring.first, self._ring.first + self._ring.size
        while at < end:
            with self._changed:
                at = max(at, self._ring.first)
                index = np.arange(at, min(end, at + self._chunk_rows)) - self._ring.first
                block = self._ring.at(index)
            at += len(block)
            yield block

    def load(self, path: Path) -> int:
        """Push what `save` wrote and return how many segments were accepted.

        Raises:
            NotFoundError: there is no such file.
            SpecError: the file is broken, or holds another layout; names how.
        """
        _, _, chunks = storage.load(path, self._layout)
        return sum(self.push(Packed(self._layout, chunk)) for chunk in chunks)

    def close(self) -> None:
        """Wake every waiter with ClosedError and refuse further use."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def _deadline(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else time.monotonic() + timeout_s
