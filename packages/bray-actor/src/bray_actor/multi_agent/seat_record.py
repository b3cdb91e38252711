"""What is recorded of one seat: how many steps still, and the segments that go to its buffer."""

from __future__ import annotations

from bray_actor.multi_agent.seat import Seat
from bray_actor.runners.open_segments import PUSH_TIMEOUT_S
from bray_core import metrics
from bray_core.layout import Packed


class SeatRecord:
    """Counts the recorded steps of one seat, and hands its segments to its buffer.

    A step is taken when its agent acts and finished when its reward is known, which in a game of
    turns is several rounds later. A quota is spent with the last step taken, and filled once all of
    them are finished.

    Args:
        seat: Seat whose steps are recorded.
        quota: Steps of one policy version that are recorded; None sets no bound.
    """

    def __init__(self, seat: Seat, quota: int | None) -> None:
        self.seat = seat
        """The seat as it was last drawn."""
        self.quota = quota
        """Steps of one policy version that are recorded; None sets no bound."""
        self.version = 0
        """Version that answered last."""
        self.frames = 0
        """Steps finished since this was last taken, less those that were lost."""
        self._left = quota or 0
        self._under_way = 0
        self._segments: list[Packed] = []

    @property
    def is_spent(self) -> bool:
        """Whether no further step is recorded."""
        return self.quota is not None and self._left <= 0

    @property
    def is_filled(self) -> bool:
        """Whether the quota is spent and all its steps are finished."""
        return self.is_spent and not self._under_way

    def take(self, version: int) -> bool:
        """Count a step, if it may be recorded.

        Args:
            version: Version of the policy that chose its action.
        """
        if self.is_spent:
            return False
        self.version = version
        self._left -= 1
        self._under_way += 1
        return True

    def finish(self) -> None:
        """Count that the reward of a step has come."""
        self._under_way -= 1
        self.frames += 1

    def lose(self, finished: int, under_way: int) -> None:
        """Give back steps that were dropped before they were pushed."""
        self._left += finished + under_way
        self._under_way -= under_way
        self.frames -= finished
        if finished + under_way:
            metrics.record("actor/steps_lost", finished + under_way, kind="count")

    def renew(self) -> None:
        """Give a spent quota again in whole, if the model has another version by now."""
        if self.is_filled and self.quota is not None and self.seat.model.version != self.version:
            self._left = self.quota

    def add(self, segment: Packed) -> None:
        """Keep a complete segment until `push`."""
        self._segments.append(segment)

    def push(self) -> None:
        """Push what is complete; a full buffer that blocks is waited for.

        Raises:
            DeadlineError: the buffer had no room in time.
        """
        if self._segments and self.seat.buffer is not None:
            segments, self._segments = self._segments, []
            self.seat.buffer.push(*segments, wait=True, timeout_s=PUSH_TIMEOUT_S)
