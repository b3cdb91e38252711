"""Turns of several policies that play together: the first one that has its steps ends the turn.

A policy that waits for its next version must not keep a game from the others: their simulator may
tick one agent after the other, in an order that nobody here knows. So a tick that no step is left
for is held for a moment only. Then it is answered, and not recorded, until all that was recorded is
in segments; from there on all wait for the next turn.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple

from bray_actor.policy.turn_segments import TurnSegments
from bray_core.errors import ConfigError
from bray_core.layout import Layout, Packed

_HOLD_S = 0.02
"""How long a tick that no step is left for waits for the end of the turn: those that were sent
together with it are there by then."""


class TurnSeat(NamedTuple):
    """A policy that takes part in a `SharedTurn`."""

    layout: Layout
    """Layout of its segments, each of which says its steps in `length`."""
    quota: int | None
    """Steps that it needs before it is trained; None takes whatever is played."""


class SharedTurn:
    """Steps that a thread grants to several policies at once, and the segments that come of them.

    A turn is over when the steps of one policy with a quota are in segments, or as many steps as
    were granted to all together; and what the others have recorded until then is, too. So no
    segment holds steps of two turns. What a policy has not played of its quota stays for the next
    turn, and its quota comes anew when it has.

    Args:
        seats: Policies by name.

    Raises:
        ConfigError: there is none, or a quota is below 1.

    Examples:
        >>> from bray_core import nested
        >>> import numpy as np
        >>> layout = Layout(nested.spec({"length": np.int32(0)}))
        >>> turn = SharedTurn({"hunter": TurnSeat(layout, 1), "runner": TurnSeat(layout, 9)})
        >>> turn.grant(100)
        >>> turn["runner"].try_acquire(), turn["hunter"].try_acquire()
        (True, True)
        >>> turn["hunter"].push({"length": np.int32(1)}), turn.wait_played(0)
        (1, False)
        >>> turn["runner"].try_acquire()  # the hunter has its steps
        False
        >>> turn["runner"].push({"length": np.int32(1)}), turn.wait_played(0)
        (1, True)
    """

    def __init__(self, seats: Mapping[str, TurnSeat]) -> None:
        if not seats:
            raise ConfigError("seats: expected one or more, got none")
        for name, seat in seats.items():
            if seat.quota is not None and seat.quota < 1:
                raise ConfigError(f"seats: {name}: quota: expected 1 or more, got {seat.quota}")
        self._changed = threading.Condition()
        self._seats = {name: SeatTurn(self, seat) for name, seat in seats.items()}
        self._left = 0
        """Steps that all together may still take in this turn."""
        self._wakers: list[Callable[[], None]] = []
        """What wakes those of the event loop who wait for a change."""

    def __getitem__(self, name: str) -> SeatTurn:
        """Return what the sessions of a policy take their steps of, and push to."""
        return self._seats[name]

    # What the thread that trains calls.

    def grant(self, steps: int) -> None:
        """Begin a turn of so many steps of all policies together, at most."""
        with self._changed:
            self._left = steps
            for seat in self._seats.values():
                seat._renew()
            self._wake()

    def wait_played(self, timeout_s: float) -> bool:
        """Wait until the turn is over; return whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_over, timeout_s)

    def segments(self) -> dict[str, list[Packed]]:
        """Return the segments that were pushed since the last call, by policy, as they came."""
        with self._changed:
            return {name: seat._take_segments() for name, seat in self._seats.items()}

    # What follows is called with the lock.

    @property
    def _is_closing(self) -> bool:
        """Whether no more steps are recorded in this turn, unless some are given back."""
        return self._left <= 0 or any(seat._is_done for seat in self._seats.values())

    @property
    def _is_over(self) -> bool:
        return self._is_closing and not any(seat._open for seat in self._seats.values())

    def _note(self, steps: int) -> None:
        """Count steps that were taken, or given back, and tell whoever that may concern."""
        self._left -= steps
        if steps <= 0:
            self._wake()
        if self._is_over:
            self._changed.notify_all()

    def _wake(self) -> None:
        for wake in self._wakers:
            wake()
        self._wakers.clear()

    # What sessions wait for, on their event loop.

    async def _wait(self, left_s: float) -> bool:
        """Wait for a change; return whether it came.

        Args:
            left_s: Longest wait in seconds, unless the turn is over: then there is none.
        """
        event, loop = asyncio.Event(), asyncio.get_running_loop()

        def wake() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

        with self._changed:
            is_over = self._is_over
            self._wakers.append(wake)
        try:
            await asyncio.wait_for(event.wait(), None if is_over else max(0.0, left_s))
        except TimeoutError:
            return False
        finally:
            with self._changed:
                if wake in self._wakers:
                    self._wakers.remove(wake)
        return True


class SeatTurn(TurnSegments):
    """What the sessions of one policy take their steps of, and push to: see `SharedTurn`.

    Args:
        turn: Turn that it belongs to.
        seat: Layout and quota of the policy.
    """

    def __init__(self, turn: SharedTurn, seat: TurnSeat) -> None:
        super().__init__(seat.layout, turn._changed)
        self._turn = turn
        self._quota = seat.quota
        self._left = 0
        """Steps of the quota that are not taken yet."""

    @property
    def _is_done(self) -> bool:
        return self._quota is not None and not self._left and not self._open

    def _renew(self) -> None:
        if self._quota is not None and not self._left:
            self._left = self._quota

    def try_acquire(self) -> bool:
        """Take one step that is recorded; False if there is none left."""
        with self._changed:
            if self._turn._is_closing or (self._quota is not None and not self._left):
                return False
            self._count(1)
            return True

    def refund(self, steps: int) -> None:
        """Give back steps that were taken but will not be recorded."""
        if steps:
            with self._changed:
                self._count(-steps)

    def _count(self, steps: int) -> None:
        if self._quota is not None:
            self._left -= steps
        self._open += steps
        self._turn._note(steps)

    async def admit(self, cut: Callable[[], None]) -> bool:
        """Wait until a step may be played; return whether it is recorded.

        Args:
            cut: Function that pushes what was recorded until now, called before it waits.
        """
        clock = asyncio.get_running_loop().time
        until = clock() + _HOLD_S
        while not self.try_acquire():
            cut()
            if not await self._turn._wait(until - clock()):
                return self.try_acquire()
        return True

    def _note_pushed(self) -> None:
        self._turn._note(0)
