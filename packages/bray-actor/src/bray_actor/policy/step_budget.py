"""Pacing of a run: so many steps are answered, then everybody waits until more are wanted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from bray_core.errors import ConfigError
from bray_core.protocols import ModelProtocol

_SHORT_S = 10.0
"""Seconds without a new version, although all steps are recorded, after which the trainer may miss
one: with several workers, a segment too many in a replay leaves the next one short."""


class Budget(Protocol):
    """Steps that may be answered now; for sessions of one event loop.

    `StepBudget` follows the versions of a model, `bray_actor.policy.turn_budget.TurnBudget` a
    thread that grants steps.
    """

    @property
    def left(self) -> int:
        """Number of steps that may still be answered."""
        ...

    def take(self, steps: int) -> None:
        """Count steps that are answered now, `left` at most."""
        ...

    def refund(self, steps: int) -> None:
        """Give back steps that were taken but will not be recorded."""
        ...

    def lend(self) -> bool:
        """Let one step more be taken, of those that come next; return whether that was done."""
        ...

    async def wait(self) -> None:
        """Wait until `left` may be more than 0."""
        ...


class Pace(Protocol):
    """Holds the steps of single sessions back; for sessions of one event loop.

    `StepBudget` follows the versions of a model; the seats of `SharedTurn` and `SharedVersions`
    follow each other, too.
    """

    async def admit(self, cut: Callable[[], None]) -> bool:
        """Wait until a step may be played; return whether it is recorded.

        Args:
            cut: Function that pushes what was recorded until now, called before it waits.
        """
        ...

    def refund(self, steps: int) -> None:
        """Give back steps that were admitted but will not be recorded."""
        ...


class StepBudget:
    """Admits `steps` steps per policy version; for sessions of one event loop.

    With it a trainer's replay holds exactly the steps of one version. Steps that cannot arrive
    any more are refunded, so that the trainer never waits for them. Where `note_pushed` is told
    what is recorded, no step is lent while the trainer has all that it waits for.

    Args:
        steps: Number of steps admitted per version.
        model: Model whose `version` counts.
        timeout_s: Longest wait for the next version.
    """

    def __init__(self, steps: int, model: ModelProtocol, timeout_s: float = 600.0) -> None:
        if steps < 1:
            raise ConfigError(f"steps: expected 1 or more, got {steps}")
        self._steps = steps
        self._model = model
        self._timeout_s = timeout_s
        self._version = model.version
        self._left = steps
        self._lent = 0
        self._open = 0
        """Steps that were taken, but are in no segment yet."""
        self._pushed = 0
        """Steps in segments of the replay that is being filled."""
        self._unsure = 0
        """Steps taken off this version's that may have gone with the replay before: of that one
        some were not noted when the version came."""
        self._over_s: float | None = None
        """When a loan was last refused or given although all is recorded; None: there was none."""
        self._changed: asyncio.Event | None = None
        self._watcher: asyncio.Task[None] | None = None

    @property
    def left(self) -> int:
        """Number of steps of the current version's budget that are not taken yet."""
        version = self._model.version
        if version > self._version:
            self._version = version
            here = self._open + self._pushed  # what else was lent went with the replay before
            taken_off = min(self._lent, here)
            self._left = self._steps - taken_off
            self._unsure = taken_off if here > self._lent else 0
            self._lent = 0
            self._over_s = None
        return self._left

    def take(self, steps: int) -> None:
        """Take steps of the current version's budget, `left` at most."""
        self._left -= steps
        self._open += steps

    def note_pushed(self, steps: int) -> None:
        """Count steps that were taken and are now recorded."""
        self._open = max(0, self._open - steps)
        self._pushed += steps
        if self._pushed >= self._steps:  # a replay takes whole segments
            self._give(min(self._unsure, self._pushed - self._steps))
            self._unsure = self._pushed = 0

    def lend(self) -> bool:
        """Let one step more be taken, of the next version's; return whether that was done.

        It is not where the next version has none left, nor while the trainer trains: where that
        takes long, one step each ten seconds is, as the trainer may miss it.
        """
        if self._lent >= self._steps - 1:
            return False
        if not self._left and self._open <= self._lent:
            now = time.monotonic()
            if self._over_s is None or now - self._over_s < _SHORT_S:
                self._over_s = self._over_s or now
                return False
            self._over_s = now
        self._left += 1
        self._lent += 1
        return True

    def try_acquire(self) -> bool:
        """Take one step of the current version's budget; False if it is used up."""
        if not self.left:
            return False
        self.take(1)
        return True

    async def admit(self, cut: Callable[[], None]) -> bool:
        """Take a step as soon as there is one; all that are played are recorded."""
        while not self.try_acquire():
            cut()
            await self.wait()
        return True

    def refund(self, steps: int) -> None:
        """Give steps back that were acquired but will not reach the buffer.

        Late ones of an earlier version never raise what is left above `steps`.
        """
        self._open = max(0, self._open - steps)
        self._give(steps)

    def _give(self, steps: int) -> None:
        self._left = min(self._steps, self._left + steps)
        if steps and self._changed is not None:
            self._changed.set()

    async def wait(self) -> None:
        """Wait until `try_acquire` may succeed: a new version came, or steps were refunded.

        Raises:
            DeadlineError: no new version came in time.
        """
        if self._changed is None or self._changed.is_set():
            self._changed = asyncio.Event()
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.create_task(self._watch())
        watcher, changed = self._watcher, self._changed
        await changed.wait()
        if watcher.done() and not watcher.cancelled() and (error := watcher.exception()):
            raise error

    async def _watch(self) -> None:
        try:
            await self._model.wait_version(self._version + 1, self._timeout_s)
        finally:
            if self._changed is not None:
                self._changed.set()
