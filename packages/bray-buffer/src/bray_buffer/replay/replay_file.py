"""The file of a replay: the segments in order, the number of the first, priorities."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bray_buffer import storage
from bray_buffer.replay.prioritized_sampler import PrioritizedSampler
from bray_buffer.replay.protocols import SegmentStore, SlotSampler
from bray_core.layout import Block

_CHUNK_BYTES = 1 << 20
"""Size of the segments that are written together, so that small ones are not written singly."""


def save(path: Path, store: SegmentStore, sampler: SlotSampler) -> None:
    """Write the segments of a store, a chunk at a time.

    Raises:
        NotFoundError: the folder is missing.
        CapacityError: the disk is full.
    """
    extra: dict[str, Any] = {"first": store.ring.first}
    if isinstance(sampler, PrioritizedSampler):
        numbers = np.arange(store.ring.first, store.ring.next)
        extra["priorities"] = sampler.values(numbers % store.capacity)
    storage.save(path, store.record, _chunks(store), extra)


def _chunks(store: SegmentStore) -> Iterator[Block]:
    together = max(1, _CHUNK_BYTES // store.record.nbytes)
    records = store.records()
    while batch := list(itertools.islice(records, together)):
        yield np.concatenate(batch)


def load(path: Path, store: SegmentStore, sampler: SlotSampler) -> int:
    """Insert a file's segments into an empty store, and return their number.

    Raises:
        NotFoundError: the file is missing.
        SpecError: the file is broken, holds another layout, or the store is not empty.
    """
    count, extra, chunks = storage.load(path, store.record)
    store.ring.start_at(int(extra.get("first", 0)))
    for chunk in chunks:
        for segment in store.restore(chunk):
            store.insert(segment)
    if store.ring.size and isinstance(sampler, PrioritizedSampler) and "priorities" in extra:
        sampler.restore(store.ring.first % store.capacity, extra["priorities"][-store.ring.size :])
    return count
