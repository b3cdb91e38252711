"""What a search needs to know of a game."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

State = TypeVar("State")


class Game(Protocol[State]):
    """Rules of a two-player zero-sum game with perfect information, moves in turn.

    A state is a value: `step` returns another one and changes none. Everything is told from the
    side of the player to move, so a state and its value mean the same whoever that is.
    """

    @property
    def num_actions(self) -> int:
        """A, the actions that exist, legal or not."""
        ...

    def initial(self) -> State:
        """Return the state before the first move."""
        ...

    def legal(self, state: State) -> npt.NDArray[np.bool_]:
        """Return which actions may be taken, `[A]`."""
        ...

    def step(self, state: State, action: int) -> State:
        """Return the state after a legal action, seen by the other player."""
        ...

    def outcome(self, state: State) -> float | None:
        """Return the value of an ended game for the player to move, −1 to 1; None: it goes on."""
        ...

    def observation(self, state: State) -> npt.NDArray[Any]:
        """Return what a policy-value function sees of a state."""
        ...
