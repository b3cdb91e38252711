"""Draws items in proportion to their priorities."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bray_buffer.replay.step_ring import spans
from bray_buffer.replay.sum_tree import SumTree
from bray_core.errors import ConfigError, SpecError

_MANY = 64
"""Largest number of ranges of slots that wait for their sums."""

Floats = npt.NDArray[np.float64]
Slots = npt.NDArray[np.int64]


class PrioritizedSampler:
    """Proportional prioritisation (Schaul et al. 2016, "Prioritized Experience Replay", §3.3–3.4).

    Item i is drawn with probability `P(i) = p_i**alpha / Σ p_k**alpha`, where `p_i` is the priority
    given last plus epsilon; a new item has the largest one given so far. The weights
    `(N · P(i))**-beta` are divided by the largest of the batch.

    Args:
        capacity: Number of slots.
        alpha: Power of the priorities; 0 draws uniformly, 1 in proportion.
        beta: Power of the weights; 0 leaves the bias of the draws, 1 corrects it whole.
        epsilon: Number added to every priority, so that 0 can still be drawn.
    """

    def __init__(self, capacity: int, alpha: float, beta: float, epsilon: float) -> None:
        self._tree = SumTree(capacity)
        self._capacity = capacity
        self._changed: list[list[int]] = []
        self._alpha = alpha
        self._epsilon = epsilon
        self.largest = 1.0
        """The largest `p**alpha` so far."""
        self.size = 0
        """Items that can be drawn."""
        self.set_beta(beta)

    def set_beta(self, beta: float) -> None:
        """Change beta from the next draw on.

        Raises:
            ConfigError: beta is not within 0 to 1.
        """
        if not 0 <= beta <= 1:
            raise ConfigError(f"beta: expected 0 to 1, got {beta}")
        self.beta = float(beta)

    def add(self, start: int, items: int) -> None:
        """Let the `items` slots from `start` on be drawn."""
        self._write(start, items, self.largest)
        self.size += items

    def remove(self, start: int, count: int, items: int) -> None:
        """Forget the `count` slots from `start` on, `items` of which could be drawn."""
        self._write(start, count, 0.0)
        self.size -= items

    def _write(self, start: int, count: int, value: float) -> None:
        for first, last, _, _ in spans(start, count, self._capacity):
            self._tree.write(first, last, value)
            if self._changed and self._changed[-1][0] <= first <= self._changed[-1][1]:
                self._changed[-1][1] = max(last, self._changed[-1][1])
            else:
                self._changed.append([first, last])
        if len(self._changed) > _MANY:
            self._add_up()

    def _add_up(self) -> None:
        """Compute the sums over what was written: neighbours that came one by one together."""
        for first, last in self._changed:
            self._tree.add_up(first, last)
        self._changed.clear()

    def draw(self, points: Floats) -> tuple[Slots, npt.NDArray[np.float32]]:
        """Return the slots `[B]` for points in [0, 1), and their weights `[B]`."""
        tree = self._tree
        if self._changed:
            self._add_up()
        slots = tree.find(points * tree.total)
        # N and the sum of all are the same for the whole batch: they go out by the division.
        values = tree.get(slots)
        ratios = values * (1.0 / values.min())
        weights: npt.NDArray[np.float32] = (ratios**-self.beta).astype(np.float32)
        return slots, weights

    def check(self, priorities: npt.ArrayLike, count: int) -> Floats:
        """Return `p**alpha` of priorities `[B]`.

        Raises:
            SpecError: their number is wrong, or one is negative, infinite or NaN, or 0 while
                epsilon is 0.
        """
        given = np.asarray(priorities)
        if given.shape != (count,) or given.dtype.kind not in "fiu":
            raise SpecError(
                f"priorities: expected {count} numbers ({count},), got {given.dtype} {given.shape}"
            )
        values = given.astype(np.float64) + self._epsilon
        least, most = values.min(initial=np.inf), values.max(initial=0.0)
        if not (least >= self._epsilon and least > 0 and most < np.inf):  # also NaN
            wrong = given[~((values >= self._epsilon) & (values > 0) & (values < np.inf))][0]
            raise SpecError(
                f"priorities: expected finite numbers above 0 (or 0 with epsilon > 0), got {wrong}"
            )
        values **= self._alpha
        # Never so small that an item can no longer be drawn, nor so large that sums overflow.
        values = np.maximum(values, 1e-150)
        return np.minimum(values, 1e150) if most > 1 else values

    def update(self, keys: npt.NDArray[Any], values: Floats, first: int, end: int) -> int:
        """Set `p**alpha` of items to values of `check`, and return how many were still there.

        Args:
            keys: Numbers of the items `[B]`; those below `first` were overwritten.
            values: Their values of `check`, `[B]`.
            first: Smallest number that is kept.
            end: Number after the largest that is kept.

        Raises:
            SpecError: a key names no item; nothing was changed.
        """
        if keys.ndim != 1 or keys.dtype.kind not in "iu":
            raise SpecError(f"keys: expected integers (B,), got {keys.dtype} {keys.shape}")
        if not len(keys):
            return 0
        least, most = keys.min(), keys.max()
        if least < 0 or most >= end:
            raise SpecError(
                f"keys: expected those of batches, 0 to {end - 1}, got {least} to {most}"
            )
        if least < first:
            kept = keys >= first
            keys, values = keys[kept], values[kept]
        if not len(keys):
            return 0
        slots = keys % self._capacity
        if self._tree.get(slots).min() == 0:
            raise SpecError("keys: expected those of batches, got one that cannot be drawn")
        self._add_up()
        self._tree.set(slots, values)
        self.largest = max(self.largest, float(values.max()))
        return len(keys)

    def restore(self, start: int, values: Floats) -> None:
        """Set `p**alpha` of all slots from `start` on, 0 where none can be drawn."""
        for first, last, begin, end in spans(start, len(values), self._capacity):
            self._tree.write(first, last, values[begin:end])
            self._tree.add_up(first, last)
        self.largest = max(self.largest, float(values.max(initial=0.0)))

    def values(self, slots: Slots) -> Floats:
        """Return `p**alpha` of slots, 0 of those that cannot be drawn."""
        return self._tree.get(slots)
