"""Draws all items alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bray_buffer.replay.step_ring import spans

Floats = npt.NDArray[np.float64]
Slots = npt.NDArray[np.int64]


class UniformSampler:
    """Draws among all slots between the oldest and the newest."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._first = 0
        self.size = 0
        """Items that can be drawn."""

    def add(self, start: int, items: int) -> None:
        """Let the `items` slots from `start` on be drawn; they follow the newest."""
        if not self.size:
            self._first = start
        self.size += items

    def remove(self, start: int, count: int, items: int) -> None:
        """Forget the `count` oldest slots, those from `start` on, with their items."""
        self._first = (start + count) % self._capacity
        self.size -= items

    def draw(self, points: Floats) -> tuple[Slots, None]:
        """Return the slots `[B]` for points in [0, 1): may exceed the capacity by one round."""
        slots = (points * self.size).astype(np.int64)
        slots += self._first
        return slots, None


class UniformSubsetSampler:
    """Draws among chosen slots, of which others may lie between."""

    def __init__(self, capacity: int) -> None:
        self._slots = np.zeros(capacity, np.int64)
        self._first = 0
        self.size = 0
        """Items that can be drawn."""

    def add(self, start: int, items: int) -> None:
        """Let the `items` slots from `start` on be drawn."""
        capacity = len(self._slots)
        slots = np.arange(start, start + items) % capacity
        place = (self._first + self.size) % capacity
        for first, last, begin, end in spans(place, items, capacity):
            self._slots[first:last] = slots[begin:end]
        self.size += items

    def remove(self, start: int, count: int, items: int) -> None:
        """Forget the `items` oldest of them."""
        self._first = (self._first + items) % len(self._slots)
        self.size -= items

    def draw(self, points: Floats) -> tuple[Slots, None]:
        """Return the slots `[B]` for points in [0, 1)."""
        chosen = (points * self.size).astype(np.int64)
        slots: npt.NDArray[Any] = self._slots.take(chosen + self._first, mode="wrap")
        return slots, None
