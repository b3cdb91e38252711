"""Protocols of the parts of a replay: the sampler of slots, and the store of segments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from bray_buffer.replay.step_ring import StepRing
from bray_core.layout import Block, Layout, Packed
from bray_core.nested import Nested

Floats = npt.NDArray[np.float64]
Slots = npt.NDArray[np.int64]


class SlotSampler(Protocol):
    """Chooses slots."""

    size: int

    def add(self, start: int, items: int) -> None:
        """Let the `items` slots from `start` on be drawn; they follow the newest."""
        ...

    def remove(self, start: int, count: int, items: int) -> None:
        """Forget the `count` oldest slots, those from `start` on, `items` of which were drawn."""
        ...

    def draw(self, points: Floats) -> tuple[Slots, npt.NDArray[np.float32] | None]:
        """Return slots `[B]` for points `[B]` in [0, 1), and their weights if there are any."""
        ...


class SegmentStore(Protocol):
    """Keeps segments, and makes batches of chosen slots. Not thread-safe."""

    capacity: int
    ring: StepRing
    """Places and numbers of its segments or steps; a number's slot is the rest after division by
    the capacity."""
    batch_layout: Layout
    record: Layout
    """Packed layout of one segment in a saved file."""

    def read(self, segment: Packed | Nested) -> list[Any]:
        """Return the segments of one argument of a push, checked. Raises SpecError."""
        ...

    def count(self, segment: Any) -> int:
        """Return what one segment of `read` takes of the capacity."""
        ...

    def insert(self, segment: Any) -> int:
        """Add one segment of `read`, and return how many items were overwritten."""
        ...

    def gather(self, slots: Slots, out: Block) -> None:
        """Fill a batch `[B, nbytes]`, except for the weights; slots may be one round too high."""
        ...

    def records(self) -> Iterator[Block]:
        """Yield the segments in the order in which they came, `[1, nbytes]` of `record`."""
        ...

    def restore(self, records: Block) -> list[Any]:
        """Return the segments of records `[N, nbytes]`, as `read` does."""
        ...
