"""How many steps of a turn fall to each source, and how many of them a learner records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bray.composition.composed_launch import ComposedLaunch
from bray.training.sampled_policy import SampledPolicy

_TURN_STEPS = 64
"""Steps of an environment between two looks at the quotas, on Ray."""


class TurnShares:
    """Shares the turns of a run out to its sources.

    Args:
        launch: what is trained.
    """

    def __init__(self, launch: ComposedLaunch) -> None:
        self._roster, self._learners = launch.roster, launch.learners
        self._is_local = launch.run.is_local

    def quotas(self, names: Sequence[str]) -> dict[str, int]:
        """Return the steps of one version that are recorded, of learners that have a bound.

        In a local run each queue has one, which is what it can hold.

        Args:
            names: learners that play in a source.
        """
        found = {}
        for name in names:
            one = self._learners[name]
            quota = one.steps_per_version
            if self._is_local and one.batch_steps is not None:
                quota = one.batch_steps
            if quota is not None:
                found[name] = quota
        return found

    def steps(self, names: Sequence[str]) -> int:
        """Return the steps of each environment between two cuts.

        Args:
            names: learners that play in a source.
        """
        if not self._is_local:
            return _TURN_STEPS
        recording = [n for n in names if self._learners[n].buffer is not None]
        replays = [n for n in recording if self._learners[n].batch_steps is None]
        if replays:
            return min(self._learners[name].turn.steps for name in replays)
        return max(self.quotas(names).values())  # the first quota that is filled ends the turn

    def of_source(self, name: str, algorithm: SampledPolicy[Any], buffer: Any) -> int:
        """Return the steps of a learner's turn that fall to each of the sources that it plays.

        Args:
            name: name of the learner.
            algorithm: its algorithm.
            buffer: what it is trained from.
        """
        sharing = sum(
            name in self._roster.learners(one) for one in self._roster.composition.sources.values()
        )
        return -(-algorithm.turn(buffer).steps // sharing)
