"""The source of training on a data set: a batch is drawn for each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from bray.text.row_queue import RowQueue
from bray_actor import Played
from bray_core import metrics
from bray_core.layout import Packed

DrawBatch: TypeAlias = Callable[[int, np.random.Generator], Packed]
"""Number of demonstrations or pairs, and what they are drawn from → their rows."""


class DrawnSource:
    """Puts a drawn batch into the queue for each step.

    Args:
        draw: draws a batch.
        queue: where batches go.
        batch_size: demonstrations, or pairs, of a batch.
        trainer: counts replays, from which with the seed follows what is drawn.
        seed: seed of the run.
    """

    def __init__(
        self, draw: DrawBatch, queue: RowQueue, batch_size: int, trainer: Any, seed: int
    ) -> None:
        self._draw = draw
        self._queue = queue
        self._batch_size = batch_size
        self._trainer = trainer
        self._seed = seed
        self._frames = 0

    def collect(self, steps: int) -> None:
        """Draw a batch."""
        rng = np.random.default_rng([self._seed, self._trainer.replays])
        self._queue.put(self._draw(self._batch_size, rng))
        self._frames += self._batch_size
        metrics.record("actor/steps", self._batch_size, kind="count")  # the axis of all curves

    def poll(self) -> Played:
        """Return what was drawn since the last call."""
        frames, self._frames = self._frames, 0
        return Played(frames, [])

    def close(self) -> None:
        """Do nothing: rows are drawn here."""
