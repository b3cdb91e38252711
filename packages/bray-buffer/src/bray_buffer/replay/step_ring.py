"""Where segments of steps lie in a ring, and which are overwritten next."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from bray_core.errors import SpecError

Spans: TypeAlias = list[tuple[int, int, int, int]]
"""Ranges `(first, last, begin, end)`: slots `first:last` hold steps `begin:end`."""


class SegmentPlace(NamedTuple):
    """The place of one segment."""

    number: int
    """Number of its first step: steps are numbered in the order in which they came, for ever."""
    start: int
    """Slot of its first step: its number modulo the capacity."""
    length: int
    """Number of steps."""
    end: int
    """Room for what a segment has once: numbers from 0 on, used again as soon as they are free."""
    items: int
    """Number of its steps that can be drawn."""


class StepRing:
    """Whole segments in the order in which they came, `capacity` steps at most."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.first = 0
        """Number of the oldest step that is kept."""
        self.next = 0
        """Number of the next step."""
        self._places: deque[SegmentPlace] = deque()
        self._free_ends: list[int] = []

    @property
    def size(self) -> int:
        """Number of steps that are kept."""
        return self.next - self.first

    def __iter__(self) -> Iterator[SegmentPlace]:
        """Yield the places of the segments, the oldest first."""
        return iter(self._places)

    def __len__(self) -> int:
        """Return the number of segments."""
        return len(self._places)

    def drop_for(self, count: int) -> list[SegmentPlace]:
        """Drop the oldest segments until `count` steps have room, and return their places."""
        dropped = []
        while self.next - self.first + count > self.capacity:
            place = self._places.popleft()
            self.first += place.length
            self._free_ends.append(place.end)
            dropped.append(place)
        return dropped

    def add(self, count: int, items: int) -> SegmentPlace:
        """Place a segment for which there is room."""
        # The one freed last comes first, so that few are ever in use.
        end = self._free_ends.pop() if self._free_ends else len(self._places)
        number = self.next
        # As `SegmentPlace(…)`, in half the time.
        place = tuple.__new__(SegmentPlace, (number, number % self.capacity, count, end, items))
        self._places.append(place)
        self.next = number + count
        return place

    def add_whole(self, segments: int, length: int) -> list[int]:
        """Place segments of one length, all items of which can be drawn; return their `end`s."""
        places, free, capacity, number = self._places, self._free_ends, self.capacity, self.next
        ends = []
        for _ in range(segments):
            end = free.pop() if free else len(places)
            ends.append(end)
            parts = (number, number % capacity, length, end, length)
            places.append(tuple.__new__(SegmentPlace, parts))
            number += length
        self.next = number
        return ends

    def start_at(self, number: int) -> None:
        """Let the first step have this number.

        Raises:
            SpecError: the ring has a first step already, or the number is negative.
        """
        if self.next or number < 0:
            raise SpecError(f"first: expected 0 or more and an empty ring, got {number}")
        self.first = self.next = number


def spans(start: int, count: int, capacity: int) -> Spans:
    """Cut a range of slots where the ring wraps: `(first, last, begin, end)` of slots and steps."""
    stop = start + count
    if stop <= capacity:
        return [(start, stop, 0, count)]
    cut = capacity - start
    return [(start, capacity, 0, cut), (0, stop - capacity, cut, count)]
