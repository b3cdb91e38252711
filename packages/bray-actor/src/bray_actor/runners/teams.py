"""N copies of a cooperative task, side by side: what a team's environments are stepped through.

Shapes: N teams, M agents of each, D features that an agent sees, S features of the whole state.
All agents of a team are alike in shapes, begin and end together, and share one reward.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]


class TeamObservation(NamedTuple):
    """What there is to see."""

    agents: Floats
    """What each agent sees itself, `[N, M, D]`."""
    state: Floats
    """What only training sees, `[N, S]`."""


class TeamStep(NamedTuple):
    """What the agents' actions led to."""

    reward: Floats
    """Of the team, `[N]`."""
    terminated: Mask
    """`[N]`."""
    truncated: Mask
    """`[N]`."""


class Teams(Protocol):
    """N copies; PettingZoo's are `bray_actor.runners.parallel_teams.ParallelTeams`."""

    @property
    def num_teams(self) -> int:
        """N."""
        ...

    @property
    def num_agents(self) -> int:
        """M."""
        ...

    @property
    def observation_size(self) -> int:
        """D."""
        ...

    @property
    def state_size(self) -> int:
        """S."""
        ...

    @property
    def num_actions(self) -> int:
        """A, of each agent."""
        ...

    def reset(self, which: Mask, seed: int | None = None) -> None:
        """Begin an episode of those teams that `which [N]` says; a seed begins all draws anew."""
        ...

    def look(self) -> TeamObservation:
        """Return what there is to see now; after an episode's last step, how it ended."""
        ...

    def step(self, action: npt.NDArray[Any]) -> TeamStep:
        """Take actions `[N, M]`. A team whose episode has ended is reset before its next step."""
        ...

    def close(self) -> None:
        """Release what the copies hold."""
        ...
