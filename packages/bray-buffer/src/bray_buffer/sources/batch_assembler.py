"""Joins what was read to batches, shuffled; from a position it goes on exactly."""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from bray_buffer.sources.reading import SourceRead
from bray_buffer.sources.source_config import SourceConfig
from bray_core.errors import SpecError
from bray_core.layout import Block


@dataclass(frozen=True, slots=True)
class SamplePosition:
    """The position of the next sample in its source, from which reading goes on."""

    epoch: int = 0
    read: int = 0
    """The read of the epoch in which the window begins."""
    row: int = 0
    """The window's first sample in that read."""
    window: int = 0
    """Number of the window in the epoch."""
    taken: int = 0
    """Samples of the window that were given."""
    samples: int = 0
    """Samples given in all epochs together."""

    @classmethod
    def from_dict(cls, state: Any) -> SamplePosition:
        """Build one from `asdict`'s values; raises SpecError if they are none."""
        names = set(asdict(cls()))
        if not isinstance(state, dict) or set(state) != names:
            raise SpecError(f"source: expected a position with {sorted(names)}, got {state!r}")
        if not all(isinstance(value, int) and value >= 0 for value in state.values()):
            raise SpecError(f"source: expected a position of numbers of 0 or more, got {state!r}")
        return cls(**state)


@dataclass(slots=True)
class _Piece:
    """Samples of one read."""

    read: int
    row: int
    block: Block


class BatchAssembler:
    """Takes reads in order and gives batches.

    Samples are shuffled in windows: `window_size` of them in the order of reading, permuted. A
    window's order follows from the seed and its number, so a position needs no random state, and to
    go on from it no more than one window is read again.

    Args:
        config: Settings: batch size, seed, what becomes of short batches.
        window_size: Number of samples that are shuffled together; 1 leaves the order as it is.
        position: Position of the first sample; the reads given begin with `position.read`.
    """

    def __init__(self, config: SourceConfig, window_size: int, position: SamplePosition) -> None:
        self._config = config
        self._window_size = window_size
        self.position = position
        """Position of the sample after the last batch."""
        self._next = position
        """Position of the sample after those in `_parts`."""
        self._pieces: deque[_Piece] = deque()
        self._waiting = 0
        """Samples in the pieces."""
        self._has_ended = False
        self._window: Block | None = None
        self._after = position
        """Position at which the next window begins."""
        self._parts: list[Block] = []
        """Blocks of the next batch."""
        self._count = 0

    def add(self, read: SourceRead) -> None:
        """Take the next read."""
        block, row = read.block, 0
        if read.number == self._after.read and not self._waiting and self._window is None:
            row = self._after.row  # what came before was given already
        if len(block) > row:
            self._pieces.append(_Piece(read.number, row, block[row:]))
            self._waiting += len(block) - row
        self._has_ended = read.ends_epoch

    def take(self) -> Block | None:
        """Return the next batch `[B, nbytes]`; None if another read is needed for it."""
        while self._count < self._config.batch_size:
            if self._window is None and not self._open_window():
                if not self._has_ended:
                    return None
                batch = self._finish_batch() if self._count else None
                self._end_epoch()
                if batch is not None and not self._is_short(batch):
                    return batch
                return None
            self._take_from_window()
        batch = self._finish_batch()
        self.position = self._next
        return batch

    def _is_short(self, batch: Block) -> bool:
        return self._config.drop_last and len(batch) < self._config.batch_size

    def _finish_batch(self) -> Block:
        parts, self._parts, self._count = self._parts, [], 0
        return np.concatenate(parts)

    def _end_epoch(self) -> None:
        self._has_ended = False
        self._next = SamplePosition(epoch=self._next.epoch + 1, samples=self._next.samples)
        self.position = self._after = self._next

    def _take_from_window(self) -> None:
        assert self._window is not None
        taken = self._next.taken
        part = self._window[taken : taken + self._config.batch_size - self._count]
        self._parts.append(part)
        self._count += len(part)
        samples = self._next.samples + len(part)
        if taken + len(part) < len(self._window):
            self._next = replace(self._next, taken=taken + len(part), samples=samples)
        else:
            self._window = None
            self._next = replace(self._after, samples=samples)

    def _open_window(self) -> bool:
        """Make the next window of what was read; False if that is too little."""
        if self._waiting == 0 or (self._waiting < self._window_size and not self._has_ended):
            return False
        number = self._after.window
        window = self._gather(self._window_size if self._window_size > 1 else 0)
        if self._window_size > 1:
            # Seed, epoch and number alone decide: a position can be gone on from without a state.
            random = np.random.default_rng([self._config.seed, self._next.epoch, number, 1])
            window = window[random.permutation(len(window))]
        self._window = window
        return True

    def _gather(self, count: int) -> Block:
        """Remove up to `count` samples from the pieces (0: one piece), and note where they end."""
        count = min(count or len(self._pieces[0].block), self._waiting)
        parts, left = [], count
        while left:
            piece = self._pieces[0]
            part = piece.block[:left]
            parts.append(part)
            left -= len(part)
            piece.row += len(part)
            piece.block = piece.block[len(part) :]
            end = piece
            if not len(piece.block):
                self._pieces.popleft()
        self._waiting -= count
        self._after = SamplePosition(self._next.epoch, end.read, end.row, self._after.window + 1)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
