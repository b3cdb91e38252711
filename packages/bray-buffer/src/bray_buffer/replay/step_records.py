"""Segments of steps in a saved file: as they were pushed, without what the replay leaves out."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bray_buffer.replay.columns import Column
from bray_buffer.replay.segment_leaves import Leaf, SegmentLeaves, SegmentSteps, rebuild, top
from bray_buffer.replay.step_ring import SegmentPlace
from bray_core.layout import Block, Layout
from bray_core.nested import ArraySpec


class StepRecords:
    """Turns stored segments into blocks of one size, and back.

    Args:
        leaves: Leaves of the segments.
        columns: Columns of the steps, by path.
        capacity: Number of slots.
        once: Names of the leaves that a segment has once and that are kept.
    """

    def __init__(
        self,
        leaves: SegmentLeaves,
        columns: Mapping[str, Column],
        capacity: int,
        once: list[str],
    ) -> None:
        self._capacity = capacity
        spec = leaves.layout.spec
        steps = [columns[path].record(leaves.length) for path in leaves.step_paths]
        kept = {name: spec[name] for name in (*once, "final_observation")}
        kept["length"] = ArraySpec(np.dtype("int32"), ())
        self.layout = Layout(kept | rebuild(leaves.step_names, spec, iter(steps)))
        at = {field.path: index for index, field in enumerate(self.layout.fields)}
        self._length = at["length"]
        self._steps = [(at[path], columns[path]) for path in leaves.step_paths]
        self._finals = [(at[f"final_{path}"], columns[path]) for path in leaves.observation_paths]
        self._once = [index for path, index in at.items() if top(path) in once]

    def save(self, place: SegmentPlace, once: list[Leaf]) -> Block:
        """Return one segment `[1, nbytes]`."""
        block = self.layout.empty(1)
        columns = self.layout.columns(block)
        slots = (place.start + np.arange(place.length)) % self._capacity
        for index, column in self._steps:
            column.save(place, slots, columns[index][0])
        end = np.array([self._capacity + place.end])
        for index, column in self._finals:
            column.gather(end, columns[index])
        for index, leaf in zip(self._once, once, strict=True):
            columns[index][0] = leaf
        columns[self._length][0] = place.length
        return block

    def load(self, records: Block) -> list[SegmentSteps]:
        """Return the segments of records `[N, nbytes]`, as views."""
        columns = self.layout.columns(records)
        return [self._load([column[row] for column in columns]) for row in range(len(records))]

    def _load(self, leaves: list[Leaf]) -> SegmentSteps:
        return SegmentSteps(
            tuple(column.restore(leaves[index]) for index, column in self._steps),
            tuple(leaves[index] for index, _ in self._finals),
            tuple(leaves[index] for index in self._once),
            int(leaves[self._length]),
        )
