"""bray's own board games as environments of two agents: tic-tac-toe and connect four."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from bray_actor.multi_agent.environment import AgentTick
from bray_algo.games import Boards
from bray_core.errors import ConfigError
from bray_core.nested import Nested
from bray_core.settings.choice import check_choice
from bray_core.spaces import Spaces

PREFIX = "bray:"
"""What stands before the name of a board game where an environment is named."""
BOARDS = {
    "tic-tac-toe": Boards(3, 3, 3),
    "connect-four": Boards(6, 7, 4, falls=True),
}
"""Rules of the games by name."""
AGENTS = ("player_0", "player_1")
"""Names of the agents; `player_0` moves first."""


def board_code(environment: str) -> str:
    """Return what makes a board game, `module:function`; other names stay as they are.

    Args:
        environment: Name of an environment, such as `bray:connect-four`.

    Raises:
        ConfigError: bray has no board game of that name; names the closest.
    """
    if not environment.startswith(PREFIX):
        return environment
    name = environment.removeprefix(PREFIX)
    check_choice("environment", environment, [PREFIX + board for board in BOARDS])
    return f"{__name__}:{name.replace('-', '_')}"


def tic_tac_toe() -> BoardEnvironment:
    """Return a game of tic-tac-toe."""
    return BoardEnvironment("tic-tac-toe")


def connect_four() -> BoardEnvironment:
    """Return a game of connect four."""
    return BoardEnvironment("connect-four")


def board_spaces(name: str) -> Spaces:
    """Return what the players of a game see and may do.

    `observation [2 H W]` holds the mover's stones, then the other's; `is_first [1]` says whether
    the mover began; `action_mask [A]` says which moves are legal.

    Args:
        name: Name of the game.
    """
    board = BOARDS[name]
    described = {
        "observation": {
            "observation": {"shape": [board.observation_size], "low": 0, "high": 1},
            "is_first": {"multi_binary": 1},
            "action_mask": {"multi_binary": board.num_actions},
        },
        "action": {"discrete": board.num_actions},
    }
    return Spaces.parse(PREFIX + name, described)


class BoardEnvironment:
    """A board game as a `MultiAgentEnvironment`.

    The winner gets 1, the loser −1, and a draw is 0 for both. A move that is not legal loses.

    Args:
        name: `tic-tac-toe` or `connect-four`.

    Raises:
        ConfigError: there is no game of that name.

    Examples:
        >>> game = BoardEnvironment("tic-tac-toe")
        >>> list(game.reset())
        ['player_0']
        >>> list(game.step({"player_0": 4}))
        ['player_1']
    """

    def __init__(self, name: str) -> None:
        check_choice("game", name, BOARDS)
        self._board = BOARDS[name]
        self._spaces = board_spaces(name)
        self._state = self._board.initial(1)
        self._mover = 0

    @property
    def agents(self) -> Sequence[str]:
        """Names of both players, the one that moves first before the other."""
        return AGENTS

    def spaces(self, agent: str) -> Spaces:
        """Return what a player sees and may do."""
        return self._spaces

    def reset(self, seed: int | None = None) -> dict[str, AgentTick]:
        """Empty the board; the first player moves, whatever the seed."""
        self._state, self._mover = self._board.initial(1), 0
        return {AGENTS[0]: AgentTick(self._observation())}

    def step(self, actions: Mapping[str, Nested]) -> dict[str, AgentTick]:
        """Take the mover's action; return the tick of the other, or the end of both.

        Raises:
            ConfigError: it is the other player's turn.
        """
        mover = AGENTS[self._mover]
        if list(actions) != [mover]:
            raise ConfigError(f"actions: expected that of {mover}, got those of {list(actions)}")
        action = np.asarray(actions[mover]).reshape(1).astype(np.int64)
        if not self._is_legal(int(action[0])):
            return self._end(-1.0)
        self._state = self._board.step(self._state, action)
        self._mover = 1 - self._mover
        outcome = float(self._board.outcome(self._state)[0])
        if np.isnan(outcome):
            return {AGENTS[self._mover]: AgentTick(self._observation())}
        return self._end(outcome)

    def _is_legal(self, action: int) -> bool:
        legal = self._board.legal(self._state)[0]
        return 0 <= action < len(legal) and bool(legal[action])

    def _end(self, reward: float) -> dict[str, AgentTick]:
        """End the game with a reward of the mover; the other gets as much less."""
        rewards = {AGENTS[self._mover]: reward, AGENTS[1 - self._mover]: -reward}
        return {agent: AgentTick(None, rewards[agent], terminated=True) for agent in AGENTS}

    def _observation(self) -> Nested:
        return {
            "observation": self._board.observation(self._state)[0],
            "is_first": np.array([self._mover == 0], np.int8),
            "action_mask": self._board.legal(self._state)[0].astype(np.int8),
        }

    def close(self) -> None:
        """Do nothing."""
