"""Segments that sessions push during a turn, kept until the thread that trains takes them."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Any

from bray_core.errors import SpecError
from bray_core.layout import Layout, Packed
from bray_core.nested import Nested


class TurnSegments(ABC):
    """A buffer that keeps what is pushed, and counts the steps that are still to come.

    Args:
        layout: Layout of a segment; each says its steps in `length`.
        changed: Lock of the turn.
    """

    def __init__(self, layout: Layout, changed: threading.Condition) -> None:
        self._layout = layout
        self._changed = changed
        self._open = 0
        """Steps that were taken, but are in no segment yet."""
        self._segments: list[Packed] = []

    @property
    def layout(self) -> Layout:
        """Layout of a segment."""
        return self._layout

    def push(self, *segments: Packed | Nested, **_: Any) -> int:
        """Keep segments until the turn is over, and return how many.

        Raises:
            SpecError: a segment is of another layout.
        """
        packed = [self._packed(segment) for segment in segments]
        views: Any = self._layout.views
        steps = sum(int(views(segment.block)["length"]) for segment in packed)
        with self._changed:
            self._segments += packed
            self._open -= steps
            self._note_pushed()
        return len(packed)

    def _packed(self, segment: Packed | Nested) -> Packed:
        if not isinstance(segment, Packed):
            return Packed(self._layout, self._layout.pack(segment))
        if segment.layout != self._layout:
            raise SpecError("segment: expected the layout that this turn is of, got another one")
        return segment

    @abstractmethod
    def _note_pushed(self) -> None:
        """Tell those who wait if the turn is over; called with the lock."""

    def _take_segments(self) -> list[Packed]:
        """Return what was pushed since the last call; called with the lock."""
        found, self._segments = self._segments, []
        return found
