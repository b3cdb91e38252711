"""Replay: segments are kept, and batches drawn from them uniformly with replacement."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bray_buffer import storage
from bray_buffer.config import ReplayConfig
from bray_buffer.ring import Ring, as_layout, as_rows
from bray_core import metrics
from bray_core.errors import ClosedError, DeadlineError
from bray_core.layout import Layout, Packed
from bray_core.nested import Nested


class ReplayBuffer:
    """A bounded store that overwrites its oldest segment. Thread-safe.

    Args:
        layout: of one segment, or its spec.
        config: sizes and seed.
    """

    def __init__(self, layout: Layout | Nested, config: ReplayConfig) -> None:
        self._layout = as_layout(layout)
        self._config = config
        self._ring = Ring(self._layout, config.capacity)
        self._random = np.random.default_rng(config.seed)
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
        """Add segments and return their number; a replay always has room, so nothing waits.

        Raises:
            SpecError: a segment does not fit; nothing of this call was added.
            ClosedError: the buffer was closed.
        """
        rows = [row for segment in segments for row in as_rows(self._layout, segment)]
        with self._changed:
            self._check_open()
            overwritten = max(0, self._ring.size + len(rows) - self._config.capacity)
            for row in rows:
                if self._ring.size == self._config.capacity:
                    self._ring.drop(1)
                self._ring.extend(row[None])
            self._counts["pushed"] += len(rows)
            self._counts["dropped"] += overwritten
            self._changed.notify_all()
        return len(rows)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("buffer: closed")

    def pop(self, timeout_s: float | None = None) -> Packed:
        """Return `batch_size` segments drawn uniformly with replacement, `[B, nbytes]`.

        Raises:
            DeadlineError: fewer than `min_size` segments within `timeout_s`.
            ClosedError: the buffer was closed.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._closed or self._is_ready(), timeout_s):
                raise DeadlineError(
                    f"buffer: no batch within {timeout_s:g} s: "
                    f"{self._ring.size} of {self._config.min_size} segments are there"
                )
            self._check_open()
            index = self._random.integers(self._ring.size, size=self._config.batch_size)
            self._counts["popped"] += self._config.batch_size
            metrics.record("buffer/queued_segments", self._ring.size, kind="last")
            return Packed(self._layout, self._ring.at(index))

    def _is_ready(self) -> bool:
        return self._ring.size >= self._config.min_size

    def __iter__(self) -> Iterator[Packed]:
        """Yield batches until the buffer is closed."""
        while True:
            try:
                yield self.pop()
            except ClosedError:
                return

    def stats(self) -> dict[str, float]:
        """Return segments `pushed`, drawn (`popped`), overwritten (`dropped`), kept (`queued`)."""
        with self._changed:
            return {**self._counts, "queued": self._ring.size}

    def save(self, path: Path) -> None:
        """Write the segments to a file, whole or not at all."""
        with self._changed:
            blocks = self._ring.oldest(self._ring.size)
        storage.save(path, self._layout, [blocks])

    def load(self, path: Path) -> int:
        """Push what `save` wrote and return how many segments that were.

        Raises:
            NotFoundError: there is no such file.
            SpecError: the file is broken, or holds another layout.
        """
        _, _, chunks = storage.load(path, self._layout)
        return sum(self.push(Packed(self._layout, chunk)) for chunk in chunks)

    def close(self) -> None:
        """Wake every waiter with ClosedError and refuse further use."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
