"""Segments of steps in a saved file: as they were pushed, without what the replay leaves out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from bray_buffer.columns import Column
from bray_buffer.segment_leaves import Leaf, SegmentLeaves, Steps, rebuild
from bray_buffer.step_ring import Place
from bray_core.layout import Block, Layout
from bray_core.nested import ArraySpec


class StepRecords:
    """Turns stored segments into blocks of one size, and back.

    Args:
        leaves: of the segments.
        columns: of the steps, by `step_paths`.
        with_once: whether what a segment has once is kept.
    """

    def __init__(
        self, leaves: SegmentLeaves, columns: Mapping[str, Column], with_once: bool
    ) -> None:
        self._leaves = leaves
        self._columns = columns
        spec = leaves.layout.spec
        records = [columns[path].record(leaves.length) for path in leaves.step_paths]
        steps = rebuild(leaves.step_names, spec, iter(records))
        self._once = leaves.once_names if with_once else []
        once = {name: spec[name] for name in (*self._once, "final_observation")}
        count = {"length": ArraySpec(np.dtype("int32"), ())}
        self.layout = Layout({"count": count, "once": once, "steps": steps})
        paths = [field.path for field in self.layout.fields]
        self._is_final = [path.startswith("once/final_observation") for path in paths]
        self._num_once = len(once)
        self._order = paths

    def save(self, place: Place, finals: list[Leaf], once: list[Leaf], capacity: int) -> Block:
        """Return one segment `[1, nbytes]`."""
        block = self.layout.empty(1)
        columns = [column[0] for column in self.layout.columns(block)]
        slots = (place.start + np.arange(place.count)) % capacity
        for path, out in self._of("steps", columns):
            self._columns[path].save(place, slots, out)
        for (_, out), leaf in zip(self._finals(columns), finals, strict=True):
            out[...] = leaf
        for (_, out), leaf in zip(self._others(columns), once, strict=True):
            out[...] = leaf
        self.layout.views(block)["count"]["length"][0] = place.count
        return block

    def load(self, records: Block) -> list[Steps]:
        """Return the segments of records `[N, nbytes]`, as views."""
        rows = self.layout.columns(records)
        return [self._load([column[row] for column in rows]) for row in range(len(records))]

    def _load(self, columns: list[Leaf]) -> Steps:
        return Steps(
            [self._columns[path].restore(leaf) for path, leaf in self._of("steps", columns)],
            [leaf for _, leaf in self._finals(columns)],
            [leaf for _, leaf in self._others(columns)],
            int(columns[0]),  # `count/length` comes first
        )

    def _of(self, kind: str, columns: list[Leaf]) -> Iterator[tuple[str, Leaf]]:
        for path, column in zip(self._order, columns, strict=True):
            if path.startswith(f"{kind}/"):
                yield path.removeprefix(f"{kind}/"), column

    def _finals(self, columns: list[Leaf]) -> list[tuple[str, Leaf]]:
        return [leaf for leaf in self._of("once", columns) if _is_final(leaf[0])]

    def _others(self, columns: list[Leaf]) -> list[tuple[str, Leaf]]:
        return [leaf for leaf in self._of("once", columns) if not _is_final(leaf[0])]


def _is_final(path: str) -> bool:
    return path.startswith("final_observation") and path[17:18] in ("", "/", "[")
