"""The columns that a runner writes observations to: whole, or each frame of a stack once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bray_actor.segment import check_stack
from bray_core import nested
from bray_core.nested import Nested

_Rows = npt.NDArray[np.int64]


class WholeObservations:
    """The leaves `observation [N, T, …]` and `final_observation [N, …]` of N open segments."""

    def __init__(self, views: Any) -> None:
        self._steps = list(nested.flatten(views["observation"]).items())
        self._final = list(nested.flatten(views["final_observation"]).items())

    def begin(self, rows: _Rows, at: _Rows, observation: Nested) -> None:
        """Write the observations that some act on.

        Args:
            rows: Numbers of the segments, `[n]`.
            at: Number of the step of each, `[n]`.
            observation: Observations of all, leaves `[N, …]`.
        """
        leaves = nested.flatten(observation)
        for path, column in self._steps:
            column[rows, at] = leaves[path][rows]

    def finish(self, rows: _Rows, at: _Rows, observation: Nested) -> None:
        """Write what followed the last step; `observation` has a row for each of `rows`."""
        leaves = nested.flatten(observation)
        for path, column in self._final:
            column[rows] = leaves[path]


class StackedFrames:
    """The leaf `frames [N, T + C, …]`: step t saw the C frames from t on.

    Raises:
        SpecError: an observation does not begin with the newest frames of the one before it.
    """

    def __init__(self, views: Any, stack: int) -> None:
        self._frames = views["frames"]
        self._stack = stack

    def begin(self, rows: _Rows, at: _Rows, observation: Nested) -> None:
        """Write the observations that some act on, see `WholeObservations.begin`."""
        stack = self._stack
        self._frames[rows, at + stack - 1] = observation[rows, -1]
        first = rows[at == 0]
        self._frames[first, :stack] = observation[first]
        second = rows[at == 1]  # once a segment is often enough
        if len(second):
            check_stack(self._frames[second, 1:stack], observation[second, :-1])

    def finish(self, rows: _Rows, at: _Rows, observation: Nested) -> None:
        """Write what followed the last step, see `WholeObservations.finish`."""
        self._frames[rows, at + self._stack - 1] = observation[:, -1]
