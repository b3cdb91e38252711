"""The agreement of all ranks on the next replay: none begins a step alone."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from bray_core import metrics
from bray_core.errors import ClosedError, DeadlineError
from bray_core.process.held_interrupts import deliver_interrupt
from bray_trainer.distributed.ranks import Ranks
from bray_trainer.prefetcher import Prefetcher, Replay
from bray_trainer.publisher import Publisher

logger = logging.getLogger(__name__)

_SLICE_S = 0.2
"""The longest time that a stop goes unnoticed while no replay is ready."""
_WARN_EVERY_S = 60.0
_CLOSED, _STOP, _NOT_YET, _READY = range(4)
"""What a rank says before each replay; all do the smallest that any of them said."""


class ReplayAgreement:
    """Waits until every rank has a replay or one of them stops, so that none enters a step alone.

    Args:
        prefetcher: Source of this rank's replays.
        ranks: The ranks that train together.
        publisher: Publisher whose failure ends the wait: without a version no replay may come.
        stopping: Event that is set when the loop shall end.
        timeout_s: Longest time that a replay may take; after a minute there is a warning.
        is_checkpoint_late: Tells whether this rank's clock asks for a checkpoint.
        has_anew: Tells whether this rank has the weights to begin anew with.
    """

    def __init__(
        self,
        prefetcher: Prefetcher,
        ranks: Ranks,
        publisher: Publisher,
        stopping: threading.Event,
        timeout_s: float,
        is_checkpoint_late: Callable[[], bool],
        has_anew: Callable[[], bool],
    ) -> None:
        self._prefetcher = prefetcher
        self._ranks = ranks
        self._publisher = publisher
        self._stopping = stopping
        self._timeout_s = timeout_s
        self._is_checkpoint_late = is_checkpoint_late
        self._has_anew = has_anew
        self.is_pausing = False
        """Whether the loop shall end without a `stop`."""
        self.wants_checkpoint = False
        """Whether any rank's clock asks for a checkpoint after the replay at hand."""
        self.begins_anew = False
        """Whether all ranks have the weights to begin anew with, before the replay at hand."""
        self._closed: ClosedError | None = None

    def begin(self) -> None:
        """Forget what ended the loop before."""
        self._stopping.clear()
        self.is_pausing = False
        self._closed = None

    def next(self) -> Replay | None:
        """Return the next replay; None if a rank stops.

        Raises:
            DeadlineError: there is none in time.
            ClosedError: the buffer of a rank was closed.
            KeyboardInterrupt: there is none yet, and an interrupt was held.
            Exception: what popping or publishing failed with.
        """
        started = warned = time.monotonic()
        while True:
            self._publisher.check()
            left_s = started + self._timeout_s - time.monotonic()
            state = self._state(min(_SLICE_S, max(0.0, left_s)))
            # The smallest of the negative versions is the newest that any rank knows.
            agreed, version, late, anew = self._ranks.smallest(
                state,
                -self._publisher.version,
                -int(self._is_checkpoint_late()),
                int(self._has_anew()),
            )
            self._publisher.follow(-version)
            self.wants_checkpoint = late < 0
            self.begins_anew = anew > 0
            if agreed == _READY:
                return self._prefetcher.take()
            if agreed == _STOP:
                return None
            if agreed == _CLOSED:
                self._end()
            deliver_interrupt()  # no step is torn by it
            if left_s <= 0 and state == _NOT_YET:
                raise DeadlineError(
                    f"trainer: no replay in {self._timeout_s:g} s: {self._prefetcher.reason}"
                )
            if time.monotonic() - warned > _WARN_EVERY_S:
                warned = time.monotonic()
                logger.warning(
                    "trainer: waits for %.0f s now: %s", warned - started, self._prefetcher.reason
                )

    def _state(self, timeout_s: float) -> int:
        if self._stopping.is_set() or self.is_pausing:
            return _STOP
        try:
            return _READY if self._prefetcher.wait(timeout_s) else _NOT_YET
        except ClosedError as error:
            self._closed = error
            return _CLOSED

    def _end(self) -> None:
        """Raise ClosedError: training ends when the first rank's buffer does."""
        if (
            unused := self._prefetcher.num_ready
        ):  # they stay for a next start, and in the checkpoint
            metrics.record("trainer/unused_replays", unused, kind="count")
        raise self._closed or ClosedError("ranks: the buffer of another rank was closed")
