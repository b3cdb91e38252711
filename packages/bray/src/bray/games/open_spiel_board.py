"""OpenSpiel's board games as a search plays them: many positions at a time."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import numpy.typing as npt

from bray_actor.multi_agent.open_spiel_game import import_pyspiel, load_game
from bray_algo.games.rules import States
from bray_core.errors import ConfigError

_MAX_MOVES = 2000
_KEPT_POSITIONS = 100_000
"""Positions whose rules are not worked out anew from the first move."""

Ints = npt.NDArray[np.int64]


class OpenSpielBoard:
    """A game of OpenSpiel as a `PlanesGame`: two players, nothing hidden, no chance.

    A state is the number of moves and the moves, then zeros. Where a player moves twice in a row,
    the other one passes in between: action `num_actions − 1`, which is legal nowhere else, so that
    turns always alternate as a search expects. An observation is OpenSpiel's with a plane more, of
    ones where the second player is to move; a tensor that is no board is planes of one cell.

    Args:
        name: Name of the game, perhaps with parameters, such as `breakthrough(rows=6,columns=6)`.

    Raises:
        ConfigError: There is no such game, or a search of its positions is none of it.
        MissingExtraError: The package open-spiel is not installed.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._game = load_game(import_pyspiel(), name, {})
        self._check()
        self.num_actions = self._game.num_distinct_actions() + 1
        self.max_moves = 2 * self._game.max_game_length()
        self._pass = self.num_actions - 1
        planes = tuple(self._game.observation_tensor_shape())
        self._planes = planes if len(planes) == 3 else (int(np.prod(planes)), 1, 1)
        self.shape = self._planes[1], self._planes[2]
        self.window = min(3, *self.shape)
        self._best = float(self._game.max_utility())
        initial = self._game.new_initial_state()
        self._first = int(initial.current_player())
        self._known: OrderedDict[bytes, Any] = OrderedDict()

    def _check(self) -> None:
        kind = self._game.get_type()
        for found, wanted, words in (
            (self._game.num_players(), 2, "two players"),
            (kind.dynamics, kind.Dynamics.SEQUENTIAL, "moves in turn"),
            (kind.chance_mode, kind.ChanceMode.DETERMINISTIC, "no chance"),
            (kind.information, kind.Information.PERFECT_INFORMATION, "nothing hidden"),
            (kind.utility, kind.Utility.ZERO_SUM, "what one wins the other loses"),
            (kind.reward_model, kind.RewardModel.TERMINAL, "rewards at the end alone"),
            (kind.provides_observation_tensor, True, "observations as tensors"),
        ):
            if found != wanted:
                raise ConfigError(
                    f"environment: open_spiel:{self.name}: expected {words}, which a search of "
                    f"positions needs, got {found}; `bray train ppo` plays others as matches"
                )
        if self._game.max_game_length() > _MAX_MOVES:
            raise ConfigError(
                f"environment: open_spiel:{self.name}: expected games of {_MAX_MOVES:,} moves at "
                f"most, got {self._game.max_game_length():,}"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name,)

    def initial(self, num: int) -> States:
        """Return `num` states before the first move, `[num, 1 + max_moves]`."""
        return np.zeros((num, 1 + self.max_moves), np.int64)

    def legal(self, states: States) -> npt.NDArray[np.bool_]:
        """Return which actions may be taken, `[N, A]`."""
        found = np.zeros((len(states), self.num_actions), np.bool_)
        for row, state in enumerate(states):
            position = self._position(state)
            if position.is_terminal():
                continue
            if position.current_player() != self._mover(state):
                found[row, self._pass] = True
            else:
                found[row, position.legal_actions()] = True
        return found

    def step(self, states: States, actions: Ints) -> States:
        """Return the states after a move each; actions are not checked."""
        after = states.copy()
        rows = np.arange(len(states))
        after[:, 0] += 1
        after[rows, after[:, 0]] = actions
        for row, action in enumerate(actions.tolist()):
            position = self._position(states[row])
            if action != self._pass:
                position = position.child(action)
            self._keep(_key(after[row]), position)
        return after

    def outcome(self, states: States) -> npt.NDArray[np.float64]:
        """Return the values of ended games for the player to move, `[N]`; NaN: it goes on."""
        found = np.full(len(states), np.nan)
        for row, state in enumerate(states):
            position = self._position(state)
            if position.is_terminal():
                found[row] = position.player_return(self._mover(state)) / self._best
        return found

    def observation(self, states: States) -> npt.NDArray[np.float32]:
        """Return what the player to move sees, `[N, C + 1, H, W]`."""
        planes, *board = self._planes
        found = np.zeros((len(states), planes + 1, *board), np.float32)
        for row, state in enumerate(states):
            mover = self._mover(state)
            seen = self._position(state).observation_tensor(mover)
            found[row, :planes] = np.asarray(seen, np.float32).reshape(self._planes)
            found[row, planes] = mover
        return found

    def text(self, state: npt.NDArray[np.int64]) -> str:
        """Return a state `[1 + max_moves]` as OpenSpiel writes it."""
        return str(self._position(state))

    def symmetries(self) -> list[tuple[Ints, Ints]]:
        """Return that of doing nothing: OpenSpiel tells of no other."""
        cells = np.arange(self.shape[0] * self.shape[1])
        return [(cells, np.arange(self.num_actions))]

    def _mover(self, state: npt.NDArray[np.int64]) -> int:
        return self._first ^ (int(state[0]) & 1)

    def _position(self, state: npt.NDArray[np.int64]) -> Any:
        """Return OpenSpiel's own state, which nobody changes."""
        key = _key(state)
        found = self._known.get(key)
        if found is not None:
            return found
        position = self._game.new_initial_state()
        for action in state[1 : 1 + int(state[0])].tolist():
            if action != self._pass:
                position.apply_action(action)
        self._keep(key, position)
        return position

    def _keep(self, key: bytes, position: Any) -> None:
        self._known[key] = position
        if len(self._known) > _KEPT_POSITIONS:
            self._known.popitem(last=False)


def _key(state: npt.NDArray[np.int64]) -> bytes:
    return state[: 1 + int(state[0])].tobytes()
