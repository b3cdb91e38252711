"""Stacks of the newest frames, of which each frame is stored once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bray_buffer.replay.columns import Leaf, Places, reserve_rows, take
from bray_buffer.replay.step_ring import SegmentPlace, Spans
from bray_core.errors import ConfigError, SpecError
from bray_core.nested import ArraySpec


class FrameColumn:
    """An observation that stacks k frames, the newest last, each step adding one.

    A slot holds the newest frame of its step; what a segment has once is the k - 1 frames before
    its first step's newest, and the whole stack of its final observation.

    Args:
        path: Path of the leaf, for messages.
        capacity: Number of slots.
        spec: Shape and dtype of one step's stack.
        axis: Axis of the frames in the stack.
        positions: Number of each slot's step in its segment, `[capacity]`; kept up by the owner.
        ends: The `end` of each slot's segment, `[capacity]`; kept up by the owner.
    """

    def __init__(
        self,
        path: str,
        capacity: int,
        spec: ArraySpec,
        axis: int,
        positions: npt.NDArray[np.int32],
        ends: npt.NDArray[np.int32],
    ) -> None:
        ndim = len(spec.shape)
        if not -ndim <= axis < ndim:
            raise ConfigError(f"frame_stack: {path}: expected an axis of {spec}, got {axis}")
        self._path = path
        self._capacity = capacity
        self._axis = axis % ndim
        self._depth = spec.shape[self._axis]
        self._frame = spec.shape[: self._axis] + spec.shape[self._axis + 1 :]
        self._spec = spec
        self._positions = positions
        self._ends = ends
        self._once = 2 * self._depth - 1
        size = int(np.prod(self._frame, dtype=np.int64))
        if size == 0 or self._depth < 1:
            raise ConfigError(f"frame_stack: {path}: expected frames with content, got {spec}")
        count = capacity * (1 + self._once) + 1
        memory = reserve_rows(count, size * spec.dtype.itemsize)
        self.frames = memory.view(spec.dtype).reshape(count, *self._frame)

    def _stacks(self, leaf: Leaf) -> Leaf:
        """Return stacks `[T, *shape]` as `[T, k, *frame]`."""
        return np.moveaxis(leaf, self._axis + 1, 1)

    def check(self, leaf: Leaf, count: int) -> None:
        """Check that each step's older frames are the newer ones of the step before.

        Raises:
            SpecError: they are not; the message names the step.
        """
        stacks = self._stacks(leaf[:count])
        pairs = [(stacks[1:, at], stacks[:-1, at + 1]) for at in range(self._depth - 1)]
        if all(np.array_equal(older, newer) for older, newer in pairs):
            return
        same = [(older == newer).reshape(count - 1, -1).all(1) for older, newer in pairs]
        step = int(np.all(same, axis=0).argmin()) + 1
        raise SpecError(
            f"segment/{self._path}: the frames of step {step} do not continue those of step "
            f"{step - 1}: leave it out of frame_stack, name the right axis (got {self._axis} of "
            f"{self._spec}), or cut segments where episodes end"
        )

    def write(self, place: SegmentPlace, spans: Spans, leaf: Leaf) -> None:
        """Copy a segment's frames in."""
        stacks = self._stacks(leaf)
        for first, last, begin, end in spans:
            self.frames[first:last] = stacks[begin:end, -1]
        head = self._capacity + place.end * self._once
        self.frames[head : head + self._depth - 1] = stacks[0, :-1]

    def write_end(self, place: SegmentPlace, leaf: Leaf) -> None:
        """Copy a segment's final stack in, whole: it may be anything, as after an episode's end."""
        start = self._capacity + place.end * self._once + self._depth - 1
        self.frames[start : start + self._depth] = np.moveaxis(leaf, self._axis, 0)

    def gather(self, places: Places, out: Leaf) -> None:
        """Fill `out [B, …, *shape]` with the stacks at `places [B, …]`."""
        rows = self._rows(places)
        stacked = np.moveaxis(out, places.ndim + self._axis, places.ndim)
        if self._axis == 0:
            flat = (len(out), -1)
            take(self.frames, rows.reshape(flat), out.reshape(*flat, *self._frame))
        else:  # frame by frame: the batch's bytes lie apart
            for depth in range(self._depth):
                at = (slice(None),) * places.ndim + (depth,)
                stacked[at] = self.frames.take(rows[at], axis=0)

    def _rows(self, places: Places) -> Places:
        """Return the rows `[B, …, k]` of the frames of `places [B, …]`."""
        capacity, depth = self._capacity, self._depth
        back = np.arange(1 - depth, 1)  # how far before the newest
        slots = np.minimum(places, capacity - 1)
        position = self._positions[slots][..., None] + back
        head = capacity + self._ends[slots][..., None] * self._once + depth - 1
        of_steps = np.where(position >= 0, (slots[..., None] + back) % capacity, head + position)
        final = capacity + (places[..., None] - capacity) * self._once + 2 * depth - 2 + back
        rows = np.where(places[..., None] < capacity, of_steps, final)
        return np.minimum(rows, len(self.frames) - 1)  # the zeros lie there

    def record(self, length: int) -> ArraySpec:
        """Return the frames before the segment's first newest, then one a step."""
        return ArraySpec(self._spec.dtype, (self._depth - 1 + length, *self._frame))

    def save(self, place: SegmentPlace, slots: Places, out: Leaf) -> None:
        """Copy one segment's frames out."""
        head = self._capacity + place.end * self._once
        older = self._depth - 1
        out[:older] = self.frames[head : head + older]
        out[older : older + place.length] = self.frames[slots]

    def restore(self, leaf: Leaf) -> Leaf:
        """Return the stacks as views of the frames."""
        stacks = np.lib.stride_tricks.sliding_window_view(leaf, self._depth, axis=0)
        return np.moveaxis(stacks, -1, self._axis + 1)
