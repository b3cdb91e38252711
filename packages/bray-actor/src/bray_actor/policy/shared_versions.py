"""Policies in lockstep that play together, each of which records so many steps of each version.

A policy whose steps are spent waits for its trainer. But its tick may keep a simulator from the
agents of another policy, whose trainer waits in turn for these: both would wait for good. So a
policy plays on meanwhile, unrecorded. All of them wait only when each is spent, and all that was
recorded is in their buffers: then every trainer has what it needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from bray_actor.policy.step_budget import StepBudget
from bray_core.layout import Layout, Packed
from bray_core.protocols import BufferProtocol, ModelProtocol

_HOLD_S = 0.02
"""How long a tick that no step is left for is held before it is played unrecorded."""


class VersionSeat(NamedTuple):
    """A policy in lockstep that takes part in `SharedVersions`."""

    model: ModelProtocol
    """Its version counts."""
    buffer: BufferProtocol
    """Where its segments go."""
    quota: int
    """Steps that are recorded of each version."""


class SharedVersions:
    """Budgets of the policies that one worker answers, which know of each other.

    Args:
        seats: Policies by name.
        timeout_s: Longest wait for the next version, when all policies wait for theirs.

    Raises:
        ConfigError: a quota is below 1.
    """

    def __init__(self, seats: Mapping[str, VersionSeat], timeout_s: float = 600.0) -> None:
        self._seats = {
            name: SeatVersions(self, seat, StepBudget(seat.quota, seat.model, timeout_s))
            for name, seat in seats.items()
        }

    def __getitem__(self, name: str) -> SeatVersions:
        """Return what the sessions of a policy take their steps of, and push to."""
        return self._seats[name]

    @property
    def _is_over(self) -> bool:
        """Whether all that the trainers wait for is in the buffers."""
        # Each one is asked for what is left: that is when it takes notice of a new version.
        steps = [seat.left + seat.open_steps for seat in self._seats.values()]
        return not any(steps)

    async def _wait(self, left_s: float) -> bool:
        """Wait for a new version of any policy; return whether it came.

        Args:
            left_s: Longest wait in seconds, unless all policies wait: then it is the timeout.
        """
        timeout_s = None if self._is_over else max(0.0, left_s)
        waits = [asyncio.ensure_future(seat.wait()) for seat in self._seats.values()]
        try:
            done, _ = await asyncio.wait(
                waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if timeout_s is None:
                for wait in done:
                    wait.result()
        finally:
            for wait in waits:
                wait.cancel()
        return bool(done)


class SeatVersions:
    """What the sessions of one policy take their steps of, and push to: see `SharedVersions`.

    Args:
        shared: All policies.
        seat: Model and buffer of this one.
        budget: Steps of the current version.
    """

    def __init__(self, shared: SharedVersions, seat: VersionSeat, budget: StepBudget) -> None:
        self._shared = shared
        self._buffer: Any = seat.buffer
        self._budget = budget
        self.wait = budget.wait
        self.open_steps = 0
        """Steps that were taken, but are not in the buffer yet."""

    @property
    def left(self) -> int:
        """Number of steps of the current version that are not taken yet."""
        return self._budget.left

    @property
    def layout(self) -> Layout:
        """Layout of a segment."""
        layout: Layout = self._buffer.layout
        return layout

    async def admit(self, cut: Callable[[], None]) -> bool:
        """Wait until a step may be played; return whether it is recorded.

        Args:
            cut: Function that pushes what was recorded until now, called before it waits.

        Raises:
            DeadlineError: no new version came in time.
        """
        clock = asyncio.get_running_loop().time
        until = clock() + _HOLD_S
        while not self._take():
            cut()
            if not await self._shared._wait(until - clock()):
                return self._take()
        return True

    def _take(self) -> bool:
        is_taken = self._budget.try_acquire()
        self.open_steps += is_taken
        return is_taken

    def refund(self, steps: int) -> None:
        """Give back steps that were taken but will not be recorded."""
        self._count(steps)
        self._budget.refund(steps)

    def push(self, segment: Packed, **options: Any) -> int:
        """Push a segment; return 1 if it was taken."""
        taken: int = self._buffer.push(segment, **options)
        if taken:
            self._count(self._steps(segment))
        return taken

    async def push_async(self, segment: Packed, **options: Any) -> int:
        """`push` that lets the event loop go on while it waits."""
        taken: int = await self._buffer.push_async(segment, **options)
        if taken:
            self._count(self._steps(segment))
        return taken

    def _steps(self, segment: Packed) -> int:
        views: Any = self.layout.views(segment.block)
        return int(views["length"])

    def _count(self, steps: int) -> None:
        self.open_steps = max(0, self.open_steps - steps)
