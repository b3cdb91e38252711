"""What a search needs to know of a game: `Game` for one state, `BatchGame` for many at a time."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

State = TypeVar("State")

States = npt.NDArray[np.int64]
"""States of a `BatchGame`, `[N, S]`: one row for each."""


class Game(Protocol[State]):
    """Rules of a two-player zero-sum game with perfect information, moves in turn.

    A state is a value: `step` returns another one and changes none. Everything is told from the
    side of the player to move, so a state and its value mean the same whoever that is.
    """

    @property
    def num_actions(self) -> int:
        """Number A of actions that exist, legal or not."""
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


class BatchGame(Protocol):
    """The same rules for rows of states: every method answers for all of them at once.

    A few array operations serve all rows; a Python call for each state would cost more than a
    small network's forward. As in `Game`, a state is told from the side of the player to move.
    """

    @property
    def num_actions(self) -> int:
        """Number A of actions that exist, legal or not."""
        ...

    @property
    def max_moves(self) -> int:
        """Moves after which every game has ended."""
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


class PlanesGame(BatchGame, Protocol):
    """A `BatchGame` whose observations are planes of a board, `[N, C, H, W]`."""

    @property
    def shape(self) -> tuple[int, int]:
        """Height H and width W of the board."""
        ...

    @property
    def window(self) -> int:
        """Side of the squares of cells that a network looks at together."""
        ...

    def symmetries(self) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """Return for each symmetry of the board which cell `[H · W]` and action `[A]` goes where.

        `planes.reshape(N, C, -1)[..., cells]` with `policy[:, actions]` is as good a sample.
        """
        ...
