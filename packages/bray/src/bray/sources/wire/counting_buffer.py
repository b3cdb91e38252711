"""A buffer as sessions push to it, which counts what they played."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bray.sources.source import Played
from bray_actor.episodes import EpisodeLog
from bray_core.errors import BrayError
from bray_core.layout import Layout, Packed


class CountingBuffer:
    """A buffer as sessions push to it, which counts what they played.

    Args:
        buffer: where the segments go.
        episodes: log of the sessions' episodes, told with what was played; None: there is none.
    """

    def __init__(self, buffer: Any, episodes: EpisodeLog | None = None) -> None:
        self._buffer = buffer
        self._episodes = episodes
        self._lock = threading.Lock()
        self._frames = 0
        self._returns: list[float] = []
        self._note_pushed: Callable[[int], None] | None = None

    def tell_pushed(self, note_pushed: Callable[[int], None]) -> None:
        """Call a function with the number of steps that each push took."""
        self._note_pushed = note_pushed

    @property
    def layout(self) -> Layout:
        """Layout of a segment."""
        layout: Layout = self._buffer.layout
        return layout

    def push(self, segment: Packed, **options: Any) -> int:
        """Push one segment, or rows of them; return how many were taken."""
        taken: int = self._buffer.push(segment, **options)
        self._count(segment, taken)
        return taken

    async def push_async(self, segment: Packed, **options: Any) -> int:
        """`push` that lets the event loop go on while it waits."""
        taken: int = await self._buffer.push_async(segment, **options)
        self._count(segment, taken)
        return taken

    def _count(self, segment: Packed, taken: int) -> None:
        rows: Any = self.layout.views(np.atleast_2d(segment.block)[:taken])
        returns = rows["episode_return"]
        steps = int(rows["length"].sum())
        if self._note_pushed is not None:
            self._note_pushed(steps)
        with self._lock:
            self._frames += steps
            self._returns += returns[~np.isnan(returns)].tolist()

    def push_turn(self, segments: Sequence[Packed], name: str) -> None:
        """Push the segments of a turn in an order that does not depend on when each one came.

        Args:
            segments: one or more segments.
            name: name of the buffer, for messages.

        Raises:
            BrayError: the buffer has no room for them.
        """
        from bray_trainer.sequences import in_order  # torch: templates know this module without it

        rows = in_order(Packed(self.layout, np.stack([one.block for one in segments])))
        if (taken := self.push(rows)) < len(segments):
            raise BrayError(
                f"{name}: has room for {taken} of the {len(segments)} segments of a turn, and "
                "nothing is popped while one is played: raise its capacity"
            )

    def poll(self) -> Played:
        """Return what was pushed since the last call."""
        episodes = () if self._episodes is None else tuple(self._episodes.take())
        with self._lock:
            played = Played(self._frames, self._returns, episodes=episodes)
            self._frames, self._returns = 0, []
        return played
