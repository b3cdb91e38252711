"""Single transitions: each observation is stored once, and a batch is one gather of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bray_buffer.replay.columns import Column, PlainColumn, reserve_rows
from bray_buffer.replay.frame_column import FrameColumn
from bray_buffer.replay.n_step import n_step
from bray_buffer.replay.protocols import Slots, SlotSampler
from bray_buffer.replay.replay_config import ReplayConfig
from bray_buffer.replay.segment_leaves import Leaf, SegmentLeaves, SegmentSteps, top
from bray_buffer.replay.step_records import StepRecords
from bray_buffer.replay.step_ring import SegmentPlace, StepRing, spans
from bray_buffer.replay.whole_inserts import WholeInserts
from bray_core import nested
from bray_core.errors import ConfigError
from bray_core.layout import Block, Layout, Packed
from bray_core.nested import ArraySpec, Nested

_FLOAT = ArraySpec(np.dtype("float32"), ())
_NUMBER = ArraySpec(np.dtype("int64"), ())
_RETURN = "~return"
"""The n-step return, beside the reward that it is made of; sorts last."""


def _return_spec(reward: ArraySpec) -> ArraySpec:
    """Return the spec of an n-step return: a sum of fractions, whatever the rewards' type is."""
    is_wide = reward.dtype.kind == "f" and reward.dtype.itemsize > _FLOAT.dtype.itemsize
    return ArraySpec(reward.dtype, ()) if is_wide else _FLOAT


class TransitionStore:
    """Steps in a ring, and for each the place of the observation that its transition leads to.

    Without frame stacks a step is one row of bytes, and a batch is pairs of rows: that of the
    step and that of its next observation, gathered at once into `[B, 2 · row]`. The layout of the
    batch knows where in them its leaves lie, and leaves out what the second row has besides.

    Args:
        leaves: Leaves of the segments.
        config: Settings of the replay.
        sampler: Sampler that is told which slots may be drawn.
    """

    def __init__(self, leaves: SegmentLeaves, config: ReplayConfig, sampler: SlotSampler) -> None:
        self.capacity = capacity = config.capacity
        self._leaves = leaves
        self._config = config
        self._sampler = sampler
        self.ring = StepRing(capacity)
        slots = np.arange(capacity)
        self._places = np.stack([slots, (slots + config.n_step) % capacity], axis=1)
        self._leads_to = self._places[:, 1]
        self._discounts = np.array([config.gamma, 0.0], np.float32)
        self._has_keys = config.sampler == "prioritized"
        self._n = config.n_step
        self._made_paths = ["discount", *([_RETURN] if self._n > 1 else [])]
        self._made_paths += ["key"] if self._has_keys else []
        self._rows: Block | None = None
        if config.frame_stack:
            self._lay_columns()
        else:
            self._lay_rows()
        self._observation = [self._columns[path] for path in leaves.observation_paths]
        self._written = [self._columns[path] for path in (*leaves.step_paths, *self._made_paths)]
        self._arrays = [column.rows for column in self._written if isinstance(column, PlainColumn)]
        self._observation_rows = [c.rows for c in self._observation if isinstance(c, PlainColumn)]
        self._terminated = leaves.step_paths.index("terminated")
        self._reward = leaves.step_paths.index("reward")
        self._records = StepRecords(leaves, self._columns, capacity, once=[])
        self.record = self._records.layout
        is_straight = self._rows is not None and self._n == 1 and not self._has_keys
        self._whole = self._whole_inserts() if is_straight else None

    def _whole_inserts(self) -> WholeInserts:
        return WholeInserts(
            self.ring,
            self._sampler,
            arrays=self._arrays,
            observations=self._observation_rows,
            leads_to=self._leads_to,
            length=self._leaves.length,
            terminated=self._terminated,
            gamma=self._config.gamma,
        )

    def _row_spec(self) -> dict[str, Nested]:
        """Return what is stored of one step."""
        made = {"discount": _FLOAT}
        if self._config.n_step > 1:
            made[_RETURN] = _return_spec(self._leaves.layout.spec["reward"])
        if self._has_keys:
            made |= {"key": _NUMBER, "weight": _FLOAT}
        return self._leaves.step_spec(self._leaves.step_names) | made

    def _lay_rows(self) -> None:
        spec = self._row_spec()
        # A row of a batch is two stored rows side by side: of the step, and of the one n later.
        row = Layout(spec)
        self._rows = reserve_rows(2 * self.capacity, row.nbytes)
        columns = zip(row.fields, row.columns(self._rows), strict=True)
        self._columns: dict[str, Column] = {
            field.path: PlainColumn(self.capacity, ArraySpec(field.dtype, field.shape), column)
            for field, column in columns
        }
        offsets = {field.path: field.offset for field in row.fields}
        if self._config.n_step > 1:
            offsets["reward"] = offsets[_RETURN]
            spec["reward"] = spec.pop(_RETURN)
        spec["next_observation"] = spec["observation"]
        self.batch_layout = Layout(
            spec,
            offsets=[
                row.nbytes + offsets[path.removeprefix("next_")]
                if top(path) == "next_observation"
                else offsets[path]
                for path, _ in nested.items(spec)
            ],
            nbytes=2 * row.nbytes,
        )

    def _lay_columns(self) -> None:
        spec = self._row_spec()
        self._positions = np.zeros(self.capacity, np.int32)
        self._ends = np.zeros(self.capacity, np.int32)
        self._columns = step_columns(
            spec, self._config.frame_stack, self.capacity, self._positions, self._ends
        )
        spec["reward"] = spec.pop(_RETURN, spec["reward"])
        spec["next_observation"] = spec["observation"]
        self.batch_layout = Layout(spec)
        self._gathered = [
            (path.removeprefix("next_"), top(path) == "next_observation")
            for path, _ in nested.items(spec)
        ]
        if self._config.n_step > 1:
            self._gathered = [
                (_RETURN if path == "reward" else path, is_next) for path, is_next in self._gathered
            ]

    def read(self, segment: Packed | Nested) -> list[SegmentSteps]:
        """Return the segments of one argument of a push, checked."""
        found = self._leaves.read(segment)
        if self._config.frame_stack:
            for steps in found:
                for path, leaf in zip(self._leaves.step_paths, steps.steps, strict=True):
                    self._columns[path].check(leaf, steps.length)
        return found

    def count(self, segment: SegmentSteps) -> int:
        """Return the steps of one segment."""
        return segment.length

    def insert(self, segment: SegmentSteps) -> int:
        """Add one segment of `read`, and return how many steps were overwritten."""
        return self.insert_all((segment,))

    def insert_all(self, segments: Sequence[SegmentSteps]) -> int:
        """Add segments of `read` in their order, and return how many steps were overwritten."""
        full, number, whole = self._leaves.length, len(segments), self._whole
        start, count = self.ring.next % self.capacity, number * full
        if whole is None or not number or start + count > self.capacity:
            return sum(map(self._insert_one, segments))
        if number == 1:
            (segment,) = segments
            if segment.length == full:
                return whole.insert_one(segment, start, full)
            return self._insert_one(segment)
        for segment in segments:
            if segment.length != full:
                return sum(map(self._insert_one, segments))
        return whole.insert(segments, start, count)

    def _insert_one(self, segment: SegmentSteps) -> int:
        ring, count = self.ring, segment.length
        has_room = ring.next - ring.first + count <= self.capacity
        dropped = 0 if has_room else self._drop_for(count)
        place = ring.add(count, count)
        self._write(place, segment.steps + self._make(place, segment))
        self._write_final(place, segment.finals)
        self._point_to(place, self.capacity + place.end)
        self._sampler.add(place.start, count)
        return dropped

    def _write(self, place: SegmentPlace, leaves: tuple[Leaf, ...]) -> None:
        start, stop = place.start, place.start + place.length
        if self._rows is not None and stop <= self.capacity and place.length == self._leaves.length:
            for rows, leaf in zip(self._arrays, leaves, strict=True):  # the quick way
                rows[start:stop] = leaf
            return
        ranges = spans(start, place.length, self.capacity)
        for column, leaf in zip(self._written, leaves, strict=True):
            column.write(place, ranges, leaf)
        if self._rows is None:
            for first, last, begin, end in ranges:
                self._positions[first:last] = np.arange(begin, end)
                self._ends[first:last] = place.end

    def _write_final(self, place: SegmentPlace, finals: tuple[Leaf, ...]) -> None:
        if self._rows is not None and len(finals) == 1:  # the quick way
            self._observation_rows[0][self.capacity + place.end] = finals[0]
            return
        for column, final in zip(self._observation, finals, strict=True):
            column.write_end(place, final)

    def _make(self, place: SegmentPlace, segment: SegmentSteps) -> tuple[Leaf, ...]:
        """Return what is not in the segment as it came, by `_made_paths`."""
        count = segment.length
        terminated = segment.steps[self._terminated]
        if self._n == 1:  # the quick way
            # Flags choose from (gamma, 0): one copy instead of a product.
            made: tuple[Leaf, ...] = (self._discounts.take(terminated, mode="clip"),)
        else:
            reward = segment.steps[self._reward][:count]
            returns, discounts = n_step(reward, terminated[:count], self._n, self._config.gamma)
            made = (discounts, returns)
        if self._has_keys:
            made += (np.arange(place.number, place.number + count),)
        return made

    def _drop_for(self, count: int) -> int:
        dropped, sampler = 0, self._sampler
        for place in self.ring.drop_for(count):
            _, start, length, _, items = place
            sampler.remove(start, length, items)
            dropped += length
            self._point_to(place, None)
        return dropped

    def _point_to(self, place: SegmentPlace, final: int | None) -> None:
        """Let a segment's last steps lead to its final observation, or all to later slots again."""
        capacity, n = self.capacity, self._n
        stop = place.start + place.length
        if n == 1:  # the quick way
            self._leads_to[(stop - 1) % capacity] = stop % capacity if final is None else final
            return
        for step in range(max(place.start, stop - n), stop):
            self._leads_to[step % capacity] = (step + n) % capacity if final is None else final

    def gather(self, slots: Slots, out: Block) -> None:
        """Fill a batch, except for the weights; slots may be one round too high."""
        places = self._places.take(slots, axis=0, mode="wrap")
        if self._rows is not None:
            # Both halves of each row in one copy.
            pairs = out.reshape(len(out), 2, -1)
            self._rows.take(places, axis=0, out=pairs, mode="clip")
            return
        columns = self.batch_layout.columns(out)
        for (path, is_next), column in zip(self._gathered, columns, strict=True):
            self._columns[path].gather(places[:, int(is_next)], column)

    def records(self) -> Iterator[Block]:
        """Yield the segments in the order in which they came."""
        for place in self.ring:
            yield self._records.save(place, [])

    def restore(self, records: Block) -> list[SegmentSteps]:
        """Return the segments of records, as `read` does."""
        return self._records.load(records)


def step_columns(
    spec: dict[str, Nested],
    frame_stack: Any,
    capacity: int,
    positions: Any,
    ends: Any,
) -> dict[str, Column]:
    """Return a column for each leaf of one step, by path.

    Raises:
        ConfigError: `frame_stack` names no leaf of the observation.
    """
    leaves = nested.flatten(spec)
    stacked = [path for path in leaves if top(path) == "observation"]
    for path in frame_stack:
        if path not in stacked:
            raise ConfigError(f"frame_stack: expected leaves of {stacked}, got {path!r}")
    return {
        path: FrameColumn(path, capacity, leaf, frame_stack[path], positions, ends)
        if path in frame_stack
        else PlainColumn(capacity, leaf)
        for path, leaf in leaves.items()
    }
