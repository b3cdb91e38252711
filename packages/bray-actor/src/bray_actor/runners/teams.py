"""N copies of a cooperative task side by side: the protocol of a team's environments.

Shapes: N teams, M agents of each, D features that an agent sees, S features of the whole state.
All agents of a team are alike in shapes, begin and end an episode together, and share one reward.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]


class TeamObservation(NamedTuple):
    """The observations of all teams."""

    agents: Floats
    """Observations of the agents, `[N, M, D]`."""
    state: Floats
    """States of the whole task, which only training sees, `[N, S]`."""


class TeamStep(NamedTuple):
    """The outcome of the agents' actions."""

    reward: Floats
    """Rewards of the teams, `[N]`."""
    terminated: Mask
    """Whether the task ended, `[N]`."""
    truncated: Mask
    """Whether the episode was cut short, `[N]`."""


class TeamSizes(Protocol):
    """What the networks of a team are made for."""

    @property
    def num_agents(self) -> int:
        """Number of agents in each team, M."""
        ...

    @property
    def observation_size(self) -> int:
        """Number of features that an agent sees, D."""
        ...

    @property
    def state_size(self) -> int:
        """Number of features of the whole state, S."""
        ...

    @property
    def num_actions(self) -> int:
        """Number of actions of each agent, A."""
        ...


class Teams(TeamSizes, Protocol):
    """N copies; PettingZoo's are `bray_actor.runners.parallel_teams.ParallelTeams`."""

    @property
    def num_teams(self) -> int:
        """Number of teams, N."""
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
