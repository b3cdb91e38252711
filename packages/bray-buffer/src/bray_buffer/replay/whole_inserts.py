"""The quick way into a replay of transitions: whole segments whose slots follow each other.

It is for one-step transitions that lie in rows and have no keys, which are all drawn alike. What it
leaves behind is what `TransitionStore` leaves segment by segment.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bray_buffer.replay.protocols import SlotSampler
from bray_buffer.replay.segment_leaves import Leaf, SegmentSteps
from bray_buffer.replay.step_ring import StepRing


class WholeInserts:
    """Writes whole segments.

    Args:
        ring: says where they go, and which are overwritten.
        sampler: is told which slots may be drawn.
        arrays: memory of the leaves of a step, in the order of `SegmentSteps.steps`, and of the
            discount.
        observations: memory of the observation's leaves.
        leads_to: place of the next observation of each slot.
        length: steps T of a segment.
        terminated: number of the leaf that says where episodes terminate.
        gamma: discount of a step that does not terminate.
    """

    def __init__(
        self,
        ring: StepRing,
        sampler: SlotSampler,
        *,
        arrays: Sequence[Leaf],
        observations: Sequence[Leaf],
        leads_to: Leaf,
        length: int,
        terminated: int,
        gamma: float,
    ) -> None:
        self._ring = ring
        self._sampler = sampler
        self._capacity = ring.capacity
        self._steps, self._discount = list(arrays[:-1]), arrays[-1]
        self._observations = list(observations)
        self._leads_to = leads_to
        self._terminated = terminated
        self._discounts = np.array([gamma, 0.0], np.float32)
        self._ending = np.full(length, gamma, np.float32)
        """Discounts of a segment whose last step terminates."""
        self._ending[-1] = 0.0

    def insert_one(self, segment: SegmentSteps, start: int, count: int) -> int:
        """Add a segment of `count` steps at the slots from `start` on; return how many were lost.

        Args:
            segment: what is added.
            start: the ring's next slot.
            count: steps of the segment.
        """
        ring, capacity, stop = self._ring, self._capacity, start + count
        dropped = 0 if ring.next - ring.first + count <= capacity else self._drop_for(count)
        final = capacity + ring.add(count, count)[3]
        slots, steps, finals = slice(start, stop), segment[0], segment[1]
        for rows, leaf in zip(self._steps, steps, strict=True):
            rows[slots] = leaf
        self._discount[slots] = self._discounts_of(steps[self._terminated])
        if len(finals) == 1:  # the quick way
            self._observations[0][final] = finals[0]
        else:
            for rows, leaf in zip(self._observations, finals, strict=True):
                rows[final] = leaf
        self._leads_to[stop - 1] = final
        self._sampler.add(start, count)
        return dropped

    def insert(self, segments: Sequence[SegmentSteps], start: int, count: int) -> int:
        """Add segments of one length, `count` steps altogether; else as `insert_one`."""
        ring, capacity = self._ring, self._capacity
        has_room = ring.next - ring.first + count <= capacity
        dropped = 0 if has_room else self._drop_for(count)
        slots = slice(start, start + count)
        # A copy for each leaf, not for each leaf of each segment.
        columns = zip(*[segment.steps for segment in segments], strict=True)
        for rows, leaves in zip(self._steps, columns, strict=True):
            np.concatenate(leaves, out=rows[slots])
        terminated = self._steps[self._terminated][slots]
        self._discount[slots] = self._discounts.take(terminated, mode="clip")
        leads_to, full, last = self._leads_to, count // len(segments), start - 1
        observations, is_one = self._observations, len(self._observations) == 1
        for segment, end in zip(segments, ring.add_whole(len(segments), full), strict=True):
            last += full
            leads_to[last] = final = capacity + end
            if is_one:  # the quick way
                observations[0][final] = segment[1][0]
            else:
                for rows, leaf in zip(observations, segment[1], strict=True):
                    rows[final] = leaf
        self._sampler.add(start, count)
        return dropped

    def _drop_for(self, count: int) -> int:
        """Make room for so many steps, and let those that lie there lead to later slots again."""
        places, capacity, leads_to = self._ring.drop_for(count), self._capacity, self._leads_to
        dropped = 0
        for place in places:
            stop = place[1] + place[2]
            leads_to[stop - 1 if stop <= capacity else stop - 1 - capacity] = stop % capacity
            dropped += place[2]
        self._sampler.remove(places[0][1], dropped, dropped)
        return dropped

    def _discounts_of(self, terminated: Leaf) -> Leaf | np.float32:
        """Return what a whole segment's discounts are set to; most end at their last step alone."""
        first = terminated.tobytes().find(1)
        if first < 0:
            return self._discounts[0]  # type: ignore[no-any-return]
        if first == len(terminated) - 1:
            return self._ending
        found: Leaf = self._discounts.take(terminated, mode="clip")
        return found
