"""Parts of segments for recurrent policies: steps to train on, after steps to warm the state up."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from bray_buffer.replay.protocols import Slots, SlotSampler
from bray_buffer.replay.replay_config import ReplayConfig
from bray_buffer.replay.segment_leaves import Leaf, SegmentLeaves, SegmentSteps
from bray_buffer.replay.step_records import StepRecords
from bray_buffer.replay.step_ring import SegmentPlace, StepRing, spans
from bray_buffer.replay.transition_store import step_columns
from bray_core import nested
from bray_core.layout import Block, Layout, Packed
from bray_core.nested import ArraySpec, Nested


class SequenceStore:
    """Steps in a ring, drawn as sequences `[B, burn_in + L, …]` (Kapturowski et al. 2019, R2D2).

    A sequence lies within one episode of one segment. It begins to train at a step of which L - 1
    follow, or, where the episode has fewer, at its first one; burn-in that is not there, and steps
    after a short episode's end, are zeros with mask False. `final_observation` is the one after
    the sequence's last valid step, what a segment has once comes along as it is.

    Args:
        leaves: Leaves of the segments.
        config: Settings of the replay.
        sampler: Sampler that is told which slots may be drawn.
    """

    def __init__(self, leaves: SegmentLeaves, config: ReplayConfig, sampler: SlotSampler) -> None:
        assert config.sequence_length is not None
        self.capacity = capacity = config.capacity
        self._leaves = leaves
        self._sampler = sampler
        self._frame_stack = config.frame_stack
        self._length = config.sequence_length
        self._offsets = np.arange(-config.burn_in, self._length)
        self._has_keys = config.sampler == "prioritized"
        self.ring = StepRing(capacity)
        self._positions = np.zeros(capacity, np.int32)  # in the segment
        self._before = np.zeros(capacity, np.int32)  # steps before it in its episode's part
        self._left = np.zeros(capacity, np.int32)  # steps from it to the end of that part
        self._after = np.zeros(capacity, np.int64)  # place of the observation after that part
        self._ends = np.zeros(capacity, np.int32)
        self._numbers = np.zeros(capacity, np.int64)
        spec = leaves.step_spec(leaves.step_names)
        self._columns = step_columns(
            spec, config.frame_stack, capacity, self._positions, self._ends
        )
        once = {name: leaves.layout.spec[name] for name in leaves.once_names}
        self._once = {
            path: np.zeros((0, *leaf.shape), leaf.dtype) for path, leaf in nested.items(once)
        }
        self._observation = [self._columns[path] for path in leaves.observation_paths]
        self._records = StepRecords(leaves, self._columns, capacity, leaves.once_names)
        self.record = self._records.layout
        self.batch_layout = Layout(self._batch_spec(once))

    def _batch_spec(self, once: dict[str, Nested]) -> dict[str, Nested]:
        lead = (len(self._offsets),)
        spec = self._leaves.step_spec(self._leaves.step_names, lead) | once
        spec["final_observation"] = self._leaves.layout.spec["final_observation"]
        spec["mask"] = ArraySpec(np.dtype(bool), lead)
        if self._has_keys:
            spec["key"] = ArraySpec(np.dtype("int64"), ())
            spec["weight"] = ArraySpec(np.dtype("float32"), ())
        return spec

    def read(self, segment: Packed | Nested) -> list[SegmentSteps]:
        """Return the segments of one argument of a push, checked."""
        found = self._leaves.read(segment)
        for steps in found if self._frame_stack else ():
            for path, leaf in zip(self._leaves.step_paths, steps.steps, strict=True):
                self._columns[path].check(leaf, steps.length)
        return found

    def count(self, segment: SegmentSteps) -> int:
        """Return the steps of one segment."""
        return segment.length

    def insert(self, segment: SegmentSteps) -> int:
        """Add one segment of `read`, and return how many steps were overwritten."""
        count, paths = segment.length, self._leaves.step_paths
        parts = _parts(segment.steps[paths.index("terminated")][:count])
        # A part shorter than L is drawn too, from its first step, with padding.
        starts = [max(1, stop - begin - self._length + 1) for begin, stop in parts]
        dropped = 0
        for gone in self.ring.drop_for(count):
            self._sampler.remove(gone.start, gone.length, gone.items)
            dropped += gone.length
        place = self.ring.add(count, sum(starts))
        ranges = spans(place.start, count, self.capacity)
        for path, leaf in zip(paths, segment.steps, strict=True):
            self._columns[path].write(place, ranges, leaf)
        for column, final in zip(self._observation, segment.finals, strict=True):
            column.write_end(place, final)
        self._write_once(place, segment.once)
        self._index(place, parts)
        for (begin, _), items in zip(parts, starts, strict=True):
            self._sampler.add((place.start + begin) % self.capacity, items)
        return dropped

    def _write_once(self, place: SegmentPlace, once: tuple[Leaf, ...]) -> None:
        for path, leaf in zip(self._leaves.once_paths, once, strict=True):
            rows = self._once[path]
            if place.end >= len(rows):
                more = np.zeros((max(16, len(rows)), *rows.shape[1:]), rows.dtype)
                rows = self._once[path] = np.concatenate([rows, more])
            rows[place.end] = leaf

    def _index(self, place: SegmentPlace, parts: list[tuple[int, int]]) -> None:
        """Note for each step where it lies in its segment and in its episode."""
        steps = np.arange(place.length)
        slots = (place.start + steps) % self.capacity
        self._positions[slots] = steps
        self._ends[slots] = place.end
        self._numbers[slots] = place.number + steps
        for begin, stop in parts:
            here = slots[begin:stop]
            self._before[here] = np.arange(stop - begin)
            self._left[here] = np.arange(stop - begin, 0, -1)
            is_last = stop == place.length
            self._after[here] = self.capacity + place.end if is_last else slots[stop]

    def gather(self, slots: Slots, out: Block) -> None:
        """Fill a batch, except for the weights."""
        slots = slots % self.capacity
        places, mask, after = self._steps_of(slots)
        columns = self.batch_layout.columns(out)
        by_path = {f.path: c for f, c in zip(self.batch_layout.fields, columns, strict=True)}
        for path in self._leaves.step_paths:
            self._columns[path].gather(places, by_path[path])
        for path, column in zip(self._leaves.observation_paths, self._observation, strict=True):
            column.gather(after, by_path[f"final_{path}"])
        ends = self._ends[slots]
        for path, rows in self._once.items():
            by_path[path][...] = rows[ends]
        by_path["mask"][...] = mask
        if self._has_keys:
            by_path["key"][...] = self._numbers[slots]

    def _steps_of(self, slots: Slots) -> tuple[Slots, npt.NDArray[np.bool_], Slots]:
        """Return places `[B, burn_in + L]`, mask, and places of the observations after `[B]`."""
        before, left = self._before[slots], self._left[slots]
        mask = (self._offsets >= -before[:, None]) & (self._offsets < left[:, None])
        steps = (slots[:, None] + self._offsets) % self.capacity
        # Padding is taken from the row of zeros at 2 · capacity.
        places = np.where(mask, steps, 2 * self.capacity)
        next_steps = (slots + self._length) % self.capacity
        return places, mask, np.where(left > self._length, next_steps, self._after[slots])

    def records(self) -> Iterator[Block]:
        """Yield the segments in the order in which they came."""
        for place in self.ring:
            once = [self._once[path][place.end] for path in self._leaves.once_paths]
            yield self._records.save(place, once)

    def restore(self, records: Block) -> list[SegmentSteps]:
        """Return the segments of records, as `read` does."""
        return self._records.load(records)


def _parts(terminated: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Cut a segment where episodes terminate within it: `(begin, stop)` of each part."""
    stops = [int(at) + 1 for at in np.flatnonzero(terminated)]
    if not stops or stops[-1] != len(terminated):
        stops.append(len(terminated))
    return list(zip([0, *stops[:-1]], stops, strict=True))
