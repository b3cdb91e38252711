"""Steps that a thread grants turn by turn, and the segments that come of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from bray_actor.policy.turn_segments import TurnSegments
from bray_core.layout import Layout, Packed


class TurnBudget(TurnSegments):
    """A turn: so many steps are granted, and it is over when all of them are in segments.

    It is a budget and a buffer at once, for the sessions of one event loop: they take steps, and
    push what they recorded. The thread that trains grants the steps and waits for the segments.
    Steps of a session that is lost are refunded, and played by whoever is there.

    Args:
        layout: layout of a segment; each says its steps in `length`.

    Examples:
        >>> from bray_core import nested
        >>> import numpy as np
        >>> budget = TurnBudget(Layout(nested.spec({"length": np.int32(0)})))
        >>> budget.grant(3)
        >>> budget.take(3)
        >>> budget.push({"length": np.int32(2)}), budget.wait_played(0)
        (1, False)
        >>> budget.push({"length": np.int32(1)}), budget.wait_played(0)
        (1, True)
        >>> [int(segment.tree["length"]) for segment in budget.segments()]
        [2, 1]
    """

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout, threading.Condition())
        self._left = 0
        self._lent = 0
        """Steps that were taken beyond those of the turn; the next one has so many fewer."""
        self._wakers: list[Callable[[], None]] = []
        """What wakes those of the event loop who wait for steps."""

    # What the thread that trains calls.

    def grant(self, steps: int) -> None:
        """Let so many more steps be taken, those included that were lent and are not pushed yet."""
        with self._changed:
            self._lent = min(self._lent, self._open)  # what was pushed went with the turn before
            paid = min(steps, self._lent)
            self._lent -= paid
            self._left += steps - paid
            self._wake()

    def wait_played(self, timeout_s: float) -> bool:
        """Wait until all steps that were granted are in segments; return whether they are."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_over, timeout_s)

    @property
    def _is_over(self) -> bool:
        return not self._left and self._open <= self._lent

    def segments(self) -> list[Packed]:
        """Return the segments that were pushed since the last call, as they came."""
        with self._changed:
            return self._take_segments()

    # What sessions call, as of a budget.

    @property
    def left(self) -> int:
        """Number of steps that may still be taken."""
        return self._left

    def take(self, steps: int) -> None:
        """Count steps that are answered now, `left` at most."""
        with self._changed:
            self._left -= steps
            self._open += steps

    def refund(self, steps: int) -> None:
        """Give back steps that were taken but will not be recorded."""
        with self._changed:
            self._left += steps
            self._open -= steps
            self._wake()

    def lend(self) -> bool:
        """Let one step more be taken, if the turn is not over; return whether.

        For sessions whose simulator ticks them one after the other: one that waits for the next
        turn would keep it from ticking another, whose segment this turn still waits for.
        """
        with self._changed:
            if self._is_over:
                return False
            self._left += 1
            self._lent += 1
            return True

    async def wait(self) -> None:
        """Wait until there are steps left."""
        event, loop = asyncio.Event(), asyncio.get_running_loop()
        with self._changed:
            if self._left:
                return
            self._wakers.append(lambda: _wake(loop, event))
        await event.wait()

    def _wake(self) -> None:
        for wake in self._wakers:
            wake()
        self._wakers.clear()

    def _note_pushed(self) -> None:
        if self._is_over:  # the thread that waits is not woken for less
            self._changed.notify_all()


def _wake(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(event.set)
