"""The number of steps that a run still records; steps beyond it count for the next run."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_Rows = npt.NDArray[np.int64]
_NONE: _Rows = np.zeros(0, np.int64)


class StepQuota:
    """Counts the steps of a run, so that it records as many as it was asked for and no others.

    Where environments begin episodes by steps of their own, not all of them act in each step. The
    last step of a run may then have more than are asked for: those beyond are late, and count for
    the next run.

    Args:
        num_envs: Number of environments that step together.
    """

    def __init__(self, num_envs: int) -> None:
        self._num_envs = num_envs
        self._left = 0
        self._carried = 0
        self.late = _NONE
        """Environments whose newest step counts for the next run."""

    def begin(self, steps: int, ahead: int = 0) -> None:
        """Begin a run of so many steps of each environment; late steps of the one before count.

        Args:
            steps: Steps of each environment in the mean.
            ahead: Steps of all environments by which the run is shorter.
        """
        self._left = steps * self._num_envs - ahead - self._carried

    @property
    def is_open(self) -> bool:
        """Whether a further step is needed."""
        return self._left > 0

    def take(self, acting: _Rows) -> _Rows:
        """Count the steps of those that act now, and return the late ones among them."""
        left = self._left
        self.late = acting[left:] if 0 < left < len(acting) else _NONE
        if left > 0:  # else nobody counts
            self._left = left - len(acting)
        return self.late

    def count(self, recorded: int) -> int:
        """Return how many steps count for this run, of a step that recorded so many."""
        counted = recorded + self._carried - len(self.late)
        self._carried = len(self.late)
        return counted
