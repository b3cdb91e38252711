"""What a search of many games side by side needs to know of a game."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

States = npt.NDArray[np.int64]
"""`[N, S]`, a row a state."""


class BatchGame(Protocol):
    """`Game` for rows of states: every method answers for all of them in a few array operations.

    As there, a state is told from the side of the player to move. A Python call for each state
    would cost more than a small network's forward.
    """

    @property
    def num_actions(self) -> int:
        """A, the actions that exist, legal or not."""
        ...

    @property
    def max_moves(self) -> int:
        """Moves after which a game has ended."""
        ...

    def initial(self, num: int) -> States:
        """Return `num` states before the first move, `[num, S]`."""
        ...

    def legal(self, states: States) -> npt.NDArray[np.bool_]:
        """Return which actions may be taken, `[N, A]`."""
        ...

    def step(self, states: States, actions: npt.NDArray[np.int64]) -> States:
        """Return the states after legal actions `[N]`, seen by the other player."""
        ...

    def outcome(self, states: States) -> npt.NDArray[np.float64]:
        """Return the values of ended games for the player to move, `[N]`; NaN: it goes on."""
        ...

    def observation(self, states: States) -> npt.NDArray[Any]:
        """Return what a policy-value function sees, `[N, …]`."""
        ...
