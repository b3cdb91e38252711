"""bray's own board games as environments of two agents, which take turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from bray_actor.multi_agent.environment import AgentTick
from bray_algo.games import Boards
from bray_core.errors import ConfigError
from bray_core.nested import Nested
from bray_core.settings.choice import check_choice
from bray_core.spaces import LeafSpace, Spaces

PREFIX = "bray:"
"""What stands before the name of a board game where an environment is named."""
PLAYERS = ("player_0", "player_1")
"""The agents: the first one begins."""


class BoardGame:
    """A game of so many in a row as a `MultiAgentEnvironment`; a win pays 1, a loss −1.

    An observation is `{"observation", "action_mask"}`: the mover's stones, then the other's, as
    planes `[2, H, W]`.

    Args:
        rules: Rules of the game.
        opening_moves: A game begins after 0 to so many random moves: policies that have settled on
            a few lines of play see others, too.

    Raises:
        ConfigError: `opening_moves` is below 0.
    """

    def __init__(self, rules: Boards, *, opening_moves: int = 0) -> None:
        if opening_moves < 0:
            raise ConfigError(f"opening_moves: expected 0 or more, got {opening_moves}")
        self._opening_moves = opening_moves
        self._rng = np.random.default_rng()
        self._rules = rules
        self._board = rules.initial(1)
        self._mover = 0
        size = rules.num_actions
        observation = {
            "observation": LeafSpace("real", "float32", (2, *rules.shape), low=0.0, high=1.0),
            "action_mask": LeafSpace("binary", "int8", (size,)),
        }
        self._spaces = Spaces("board", observation, LeafSpace("category", "int64", (), (size,)))

    @property
    def agents(self) -> Sequence[str]:
        """Names of the two players."""
        return PLAYERS

    def spaces(self, agent: str) -> Spaces:
        """Return what a player sees and may do: the same for both."""
        return self._spaces

    def reset(self, seed: int | None = None) -> dict[str, AgentTick]:
        """Empty the board, but for the random moves of an opening."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._board, self._mover = self._rules.initial(1), 0
        for _ in range(self._rng.integers(self._opening_moves + 1)):
            legal = np.flatnonzero(self._rules.legal(self._board)[0])
            after = self._rules.step(self._board, self._rng.choice(legal, 1))
            if not np.isnan(self._rules.outcome(after)[0]):
                break
            self._board, self._mover = after, 1 - self._mover
        return {PLAYERS[self._mover]: self._tick()}

    def step(self, actions: Mapping[str, Nested]) -> dict[str, AgentTick]:
        """Take the mover's action.

        Raises:
            ConfigError: it is not legal.
        """
        action = int(actions[PLAYERS[self._mover]])
        try:
            self._board = self._rules.step(self._board, np.array([action]))
        except ValueError as error:
            raise ConfigError(
                f"action: {error}: the policy is to mask its choices by observation['action_mask']"
            ) from error
        self._mover = 1 - self._mover
        outcome = float(self._rules.outcome(self._board)[0])
        if np.isnan(outcome):
            return {PLAYERS[self._mover]: self._tick()}
        return {
            agent: AgentTick(None, outcome if k == self._mover else 0.0 - outcome, terminated=True)
            for k, agent in enumerate(PLAYERS)
        }

    def _tick(self) -> AgentTick:
        planes = self._rules.observation(self._board).reshape(2, *self._rules.shape)
        mask = self._rules.legal(self._board)[0].astype(np.int8)
        return AgentTick({"observation": planes, "action_mask": mask})

    def render(self) -> str:
        """Return the board as text: `X` is the first player, `O` the second."""
        planes = self._rules.observation(self._board).reshape(2, *self._rules.shape)
        return board_text(planes, self._mover)

    def close(self) -> None:
        """Do nothing: the board holds nothing."""


def board_text(planes: npt.NDArray[np.float32], mover: int) -> str:
    """Return a board as text: `X` is the first player, `O` the second.

    Args:
        planes: Stones of the player to move, and of the other one, `[2, H, W]`.
        mover: Which player is to move, 0 or 1.
    """
    first, second = planes[[mover, 1 - mover]] > 0
    signs = np.where(first, "X", np.where(second, "O", "."))
    return "\n".join(" ".join(row) for row in signs)


def tic_tac_toe(*, opening_moves: int = 0) -> BoardGame:
    """Make three in a row on a board of three by three.

    Args:
        opening_moves: See `BoardGame`.
    """
    return BoardGame(Boards(3, 3, 3), opening_moves=opening_moves)


def connect_four(*, opening_moves: int = 0) -> BoardGame:
    """Make four in a row on a board of six by seven, where stones fall.

    Args:
        opening_moves: See `BoardGame`.
    """
    return BoardGame(Boards(6, 7, 4, falls=True), opening_moves=opening_moves)


BOARD_GAMES = {"tic-tac-toe": tic_tac_toe, "connect-four": connect_four}
"""The games by name."""


def board_code(environment: str) -> str:
    """Return what makes a board game, `module:function`; other names stay as they are.

    Args:
        environment: Name of an environment, such as `bray:connect-four`.

    Raises:
        ConfigError: bray has no board game of that name; names the closest.
    """
    if not environment.startswith(PREFIX):
        return environment
    check_choice("environment", environment, [PREFIX + name for name in BOARD_GAMES])
    return f"{__name__}:{BOARD_GAMES[environment.removeprefix(PREFIX)].__name__}"
