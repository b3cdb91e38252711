"""A queue of segments: each is used once, in batches ready to train on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

from bray_buffer import storage
from bray_buffer.config import BufferConfig
from bray_buffer.ring import Ring, as_layout, as_rows
from bray_core import metrics
from bray_core.errors import ClosedError, ConfigError, DeadlineError
from bray_core.layout import Block, Layout, Packed
from bray_core.nested import Nested


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
        self._ring = Ring(self._layout, config.capacity)
        if config.batch_steps is not None and "length" not in {
            field.path for field in self._layout.fields
        }:
            raise ConfigError("batch_steps: needs segments with a leaf `length`: use batch_size")
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
            timeout_s: how long to wait at most.

        Raises:
            SpecError: a segment does not fit; nothing of this call was added.
            DeadlineError: no room within `timeout_s`; segments before it were added.
            ClosedError: the buffer was closed.
        """
        rows = [row for segment in segments for row in as_rows(self._layout, segment)]
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        accepted = 0
        with self._changed:
            for row in rows:
                if not self._make_room(wait, deadline):
                    continue
                self._append(row)
                accepted += 1
            self._changed.notify_all()
        return accepted

    def _make_room(self, wait: bool, deadline: float | None) -> bool:
        """Return whether a row may be appended; drops, counts or waits as configured."""
        if self._closed:
            raise ClosedError("buffer: push after close")
        if self._ring.size < self._config.capacity:
            return True
        if self._config.when_full == "drop_oldest":
            self._remove(1)
            self._count_drop()
            return True
        if self._config.when_full == "drop_newest":
            self._count_drop()
            return False
        if wait:
            self._changed.notify_all()
            self._wait_for_room(deadline)
        return wait

    def _wait_for_room(self, deadline: float | None) -> None:
        left = None if deadline is None else deadline - time.monotonic()
        if not self._changed.wait_for(
            lambda: self._closed or self._ring.size < self._config.capacity, left
        ):
            raise DeadlineError("buffer: push found no room in time: the trainer does not keep up")
        if self._closed:
            raise ClosedError("buffer: closed while push waited")

    def _count_drop(self) -> None:
        self._counts["dropped"] += 1
        metrics.record("buffer/dropped_segments", 1, kind="count")

    def _append(self, row: Block) -> None:
        self._ring.append(row)
        self._counts["pushed"] += 1
        if self._config.batch_steps is not None:
            self._queued_steps += self._ring.steps(self._ring.size - 1)

    def _remove(self, count: int) -> None:
        if self._config.batch_steps is not None:
            self._queued_steps -= sum(self._ring.steps(index) for index in range(count))
        self._ring.drop(count)

    def pop(self, timeout_s: float | None = None) -> Packed:
        """Return the next batch: whole segments in the order of their arrival, `[B, nbytes]`.

        Raises:
            DeadlineError: no batch within `timeout_s`.
            ClosedError: the buffer was closed.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._closed or self._is_ready(), timeout_s):
                raise DeadlineError(f"buffer: no batch within {timeout_s:g} s: {self._progress()}")
            if self._closed:
                raise ClosedError("buffer: closed")
            count = self._batch_count()
            block = self._ring.peek(count)
            self._remove(count)
            self._counts["popped"] += count
            metrics.record("buffer/queued_segments", self._ring.size, kind="last")
            self._changed.notify_all()
        return Packed(self._layout, block)

    def _is_ready(self) -> bool:
        if self._config.batch_size is not None:
            return self._ring.size >= self._config.batch_size
        assert self._config.batch_steps is not None
        full = self._ring.size == self._config.capacity  # else a producer would wait for ever
        return self._queued_steps >= self._config.batch_steps or full

    def _batch_count(self) -> int:
        if self._config.batch_size is not None:
            return self._config.batch_size
        assert self._config.batch_steps is not None
        steps = count = 0
        while steps < self._config.batch_steps and count < self._ring.size:
            steps += self._ring.steps(count)
            count += 1
        return count

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
        """Return segments pushed, popped and dropped so far, and queued now."""
        with self._changed:
            return {**self._counts, "queued": self._ring.size}

    def save(self, path: Path) -> None:
        """Write what is queued to a file, whole or not at all."""
        with self._changed:
            storage.save(path, self._layout, self._ring.peek(self._ring.size))

    def load(self, path: Path) -> int:
        """Push what `save` wrote and return how many segments were accepted.

        Raises:
            NotFoundError: there is no such file.
            SpecError: the file is broken, or holds another layout.
        """
        return self.push(storage.load(path, self._layout))

    def close(self) -> None:
        """Wake every waiter with ClosedError and refuse further use."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
