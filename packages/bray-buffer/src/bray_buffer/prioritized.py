"""Draws items in proportion to their priorities."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bray_buffer.step_ring import spans
from bray_buffer.sum_tree import SumTree
from bray_core.errors import ConfigError, SpecError

Floats = npt.NDArray[np.float64]
Slots = npt.NDArray[np.int64]


class Prioritized:
    """Proportional prioritisation (Schaul et al. 2016, "Prioritized Experience Replay", §3.3–3.4).

    Item i is drawn with probability `P(i) = p_i**alpha / Σ p_k**alpha`, where `p_i` is the priority
    given last plus epsilon; a new item has the largest one given so far. The weights
    `(N · P(i))**-beta` are divided by the largest of the batch.

    Args:
        capacity: slots.
        alpha, beta, epsilon: as above.
    """

    def __init__(self, capacity: int, alpha: float, beta: float, epsilon: float) -> None:
        self._tree = SumTree(capacity)
        self._capacity = capacity
        self._removed: list[tuple[int, int]] = []
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
            ConfigError: it is not within 0 to 1.
        """
        if not 0 <= beta <= 1:
            raise ConfigError(f"beta: expected 0 to 1, got {beta}")
        self.beta = float(beta)

    def add(self, start: int, items: int) -> None:
        """Let the `items` slots from `start` on be drawn."""
        added = [(first, last) for first, last, _, _ in spans(start, items, self._capacity)]
        for first, last in added:
            self._tree.write(first, last, self.largest)
            self._tree.add_up(first, last)
        for first, last in self._removed:
            if (first, last) not in added:  # mostly a new segment takes the place of the oldest
                self._tree.add_up(first, last)
        self._removed.clear()
        self.size += items

    def remove(self, start: int, count: int, items: int) -> None:
        """Forget the `count` slots from `start` on, `items` of which could be drawn.

        An `add` has to follow before the next draw.
        """
        for first, last, _, _ in spans(start, count, self._capacity):
            self._tree.write(first, last, 0.0)
            self._removed.append((first, last))
        self.size -= items

    def draw(self, points: Floats) -> tuple[Slots, npt.NDArray[np.float32]]:
        """Return the slots `[B]` for points in [0, 1), and their weights `[B]`."""
        tree = self._tree
        slots = tree.find(points * tree.total)
        # N and the sum of all are the same for the whole batch: they go out by the division.
        values = tree.get(slots)
        ratios = values * (1.0 / values.min())
        weights: npt.NDArray[np.float32] = (ratios**-self.beta).astype(np.float32)
        return slots, weights

    def check(self, priorities: npt.ArrayLike, count: int) -> Floats:
        """Return `p**alpha` of priorities `[B]`.

        Raises:
            SpecError: another number of them, or one that is negative, infinite or NaN, or 0 while
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

    def update(self, slots: Slots, values: Floats) -> None:
        """Set `p**alpha` of slots `[B]` to `values` of `check`."""
        if len(values):
            self._tree.set(slots, values)
            self.largest = max(self.largest, float(values.max()))

    def restore(self, start: int, values: Floats) -> None:
        """Set `p**alpha` of all slots from `start` on, 0 where none can be drawn."""
        for first, last, begin, end in spans(start, len(values), self._capacity):
            self._tree.write(first, last, values[begin:end])
            self._tree.add_up(first, last)
        self.largest = max(self.largest, float(values.max(initial=0.0)))

    def values(self, slots: Slots) -> Floats:
        """Return `p**alpha` of slots, 0 of those that cannot be drawn."""
        return self._tree.get(slots)
