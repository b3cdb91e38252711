"""Replay: segments are kept, and batches drawn from them uniformly with replacement."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bray_buffer.ring import as_layout, as_rows
from bray_core import metrics
from bray_core.errors import ClosedError, ConfigError, DeadlineError
from bray_core.layout import Layout, Packed
from bray_core.nested import Nested


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayConfig:
    """Settings of a replay."""

    capacity: int
    """Segments kept; the oldest is overwritten."""
    batch_size: int
    """Segments of a batch."""
    min_size: int = 1
    """Segments that must be there before the first batch."""
    seed: int = 0
    """Of the sampler."""

    def __post_init__(self) -> None:
        for name in ("capacity", "batch_size", "min_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: expected 1 or more, got {getattr(self, name)}")
        if self.min_size > self.capacity:
            raise ConfigError(
                f"min_size: {self.min_size} exceeds capacity={self.capacity}: "
                "lower the one or raise the other"
            )


class ReplayBuffer:
    """A bounded store that overwrites its oldest segment. Thread-safe.

    Args:
        layout: of one segment, or its spec.
        config: sizes and seed.
    """

    def __init__(self, layout: Layout | Nested, config: ReplayConfig) -> None:
        self._layout = as_layout(layout)
        self._config = config
        self._blocks = self._layout.empty(config.capacity)
        self._random = np.random.default_rng(config.seed)
        self._pushed = 0
        self._popped = 0
        self._changed = threading.Condition()
        self._closed = False

    @property
    def layout(self) -> Layout:
        """The packed layout of one segment."""
        return self._layout

    def push(
        self, *segments: Packed | Nested, wait: bool = False, timeout_s: float | None = None
    ) -> int:
        """Add segments and return their number; a replay always has room.

        Raises:
            SpecError: a segment does not fit; nothing of this call was added.
            ClosedError: the buffer was closed.
        """
        rows = [row for segment in segments for row in as_rows(self._layout, segment)]
        with self._changed:
            if self._closed:
                raise ClosedError("buffer: push after close")
            for row in rows:
                self._blocks[self._pushed % self._config.capacity] = row
                self._pushed += 1
            self._changed.notify_all()
        return len(rows)

    def pop(self, timeout_s: float | None = None) -> Packed:
        """Return `batch_size` segments drawn uniformly with replacement, `[B, nbytes]`.

        Raises:
            DeadlineError: fewer than `min_size` segments within `timeout_s`.
            ClosedError: the buffer was closed.
        """
        with self._changed:
            if not self._changed.wait_for(
                lambda: self._closed or self._pushed >= self._config.min_size, timeout_s
            ):
                raise DeadlineError(
                    f"buffer: no batch within {timeout_s:g} s: "
                    f"{self._pushed} of {self._config.min_size} segments are there"
                )
            if self._closed:
                raise ClosedError("buffer: closed")
            size = min(self._pushed, self._config.capacity)
            index = self._random.integers(size, size=self._config.batch_size)
            self._popped += self._config.batch_size
            metrics.record("buffer/queued_segments", size, kind="last")
            return Packed(self._layout, self._blocks[index])

    def __iter__(self) -> Iterator[Packed]:
        """Yield batches until the buffer is closed."""
        while True:
            try:
                yield self.pop()
            except ClosedError:
                return

    def stats(self) -> dict[str, float]:
        """Return segments pushed, drawn and overwritten so far, and stored now."""
        with self._changed:
            stored = min(self._pushed, self._config.capacity)
            return {
                "pushed": self._pushed,
                "popped": self._popped,
                "dropped": self._pushed - stored,
                "queued": stored,
            }

    def close(self) -> None:
        """Wake every waiter with ClosedError and refuse further use."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
