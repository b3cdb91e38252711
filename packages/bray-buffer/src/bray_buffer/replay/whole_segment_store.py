"""Segments as they were pushed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bray_buffer.replay.columns import reserve_rows
from bray_buffer.replay.protocols import Slots, SlotSampler
from bray_buffer.replay.replay_config import ReplayConfig
from bray_buffer.replay.step_ring import StepRing
from bray_buffer.segment_lengths import SegmentLengths, is_scalar_length
from bray_buffer.segment_rows import as_rows
from bray_core.errors import ConfigError
from bray_core.layout import Block, Layout, Packed
from bray_core.nested import ArraySpec, Nested

_MADE = {"key": ArraySpec(np.dtype("int64"), ()), "weight": ArraySpec(np.dtype("float32"), ())}


class WholeSegmentStore:
    """Blocks in a ring, followed by the key where batches have one.

    Args:
        layout: Packed layout of one segment.
        config: Settings of the replay.
        sampler: Sampler that is told which slots may be drawn.

    Raises:
        ConfigError: a segment has leaves of the names that batches add.
    """

    def __init__(self, layout: Layout, config: ReplayConfig, sampler: SlotSampler) -> None:
        self.capacity = config.capacity
        self.record = layout
        self._lengths = SegmentLengths(layout) if is_scalar_length(layout) else None
        self._sampler = sampler
        self.ring = StepRing(config.capacity)
        self._has_keys = config.sampler == "prioritized"
        self.batch_layout = _with_key_and_weight(layout) if self._has_keys else layout
        self._rows = reserve_rows(config.capacity, self.batch_layout.nbytes)
        if self._has_keys:
            paths = [field.path for field in self.batch_layout.fields]
            self._keys = self.batch_layout.columns(self._rows)[paths.index("key")]

    def read(self, segment: Packed | Nested) -> list[Block]:
        """Return the segments of one argument of a push, checked."""
        rows = as_rows(self.record, segment)
        if self._lengths is not None:
            self._lengths.of(rows)
        return list(rows)

    def count(self, segment: Block) -> int:
        """Return 1."""
        return 1

    def insert(self, segment: Block) -> int:
        """Add one segment of `read`, and return how many were overwritten."""
        dropped = self.ring.drop_for(1)
        for place in dropped:
            self._sampler.remove(place.start, 1, 1)
        place = self.ring.add(1, 1)
        self._rows[place.start, : self.record.nbytes] = segment
        if self._has_keys:
            self._keys[place.start] = place.number
        self._sampler.add(place.start, 1)
        return len(dropped)

    def gather(self, slots: Slots, out: Block) -> None:
        """Fill a batch, except for the weights; slots may be one round too high."""
        self._rows.take(slots, axis=0, out=out, mode="wrap")

    def records(self) -> Iterator[Block]:
        """Yield the segments in the order in which they came."""
        for place in self.ring:
            yield self._rows[place.start : place.start + 1, : self.record.nbytes]

    def restore(self, records: Block) -> list[Block]:
        """Return the segments of records, as `read` does."""
        return list(records)


def _with_key_and_weight(layout: Layout) -> Layout:
    """Return the layout of a segment's block with key and weight behind it."""
    spec = layout.spec
    if not isinstance(spec, dict) or set(_MADE) & set(spec):
        raise ConfigError(
            "layout: prioritized batches add the leaves key and weight: expected a dict without "
            f"them, got {sorted(spec) if isinstance(spec, dict) else type(spec).__name__}"
        )
    nbytes = layout.nbytes  # a multiple of 8
    offsets = {field.path: field.offset for field in layout.fields}
    offsets |= {"key": nbytes, "weight": nbytes + 8}
    whole = spec | _MADE
    paths = [field.path for field in Layout(whole).fields]
    return Layout(whole, offsets=[offsets[path] for path in paths])
