"""OpenSpiel's games: in turns or all at once, with chance and hidden cards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bray_actor.multi_agent.environment import AgentTick
from bray_core.errors import ConfigError, MissingExtraError
from bray_core.nested import Nested
from bray_core.settings.choice import closest
from bray_core.spaces import LeafSpace, Spaces, kind_of


def import_pyspiel() -> Any:
    """Return the module.

    Raises:
        MissingExtraError: the package is not installed.
    """
    try:
        import pyspiel
    except ImportError:
        raise MissingExtraError("playing OpenSpiel's games", "bray-actor", "open-spiel") from None
    return pyspiel


class OpenSpielGame:
    """A game of OpenSpiel as a `MultiAgentEnvironment` of the agents `player_0`, `player_1`, ….

    An observation is `{"observation", "action_mask"}`: what the player knows of the whole game
    (OpenSpiel's information state) where the game offers that, else what it sees now. Chance is
    drawn from a generator of its own.

    Args:
        game: Name, perhaps with parameters, such as `leduc_poker` or `kuhn_poker(players=3)`.
        kwargs: Parameters of the game.

    Raises:
        ConfigError: there is no such game or parameter, or it shows no arrays.
        MissingExtraError: the package open-spiel is not installed.
    """

    def __init__(self, game: str, kwargs: Mapping[str, Any] | None = None) -> None:
        self._game = load_game(import_pyspiel(), game, dict(kwargs or {}))
        self._agents = [f"player_{index}" for index in range(self._game.num_players())]
        self._num_actions = self._game.num_distinct_actions()
        self._shows_all = self._game.get_type().provides_information_state_tensor
        shape = self._shape(game)
        observation = {
            "observation": LeafSpace(kind_of("float32", shape), "float32", shape),
            "action_mask": LeafSpace("binary", "int8", (self._num_actions,)),
        }
        action = LeafSpace("category", "int64", (), (self._num_actions,))
        self._spaces = Spaces(f"open_spiel:{game}", observation, action)
        self._shape_of_one = shape
        self._random = np.random.default_rng()
        self._state: Any = None
        self._paid = np.zeros(len(self._agents))
        """Rewards of the game so far, by player."""
        self._owed = np.zeros(len(self._agents))
        """Rewards since each player's last tick."""

    def _shape(self, game: str) -> tuple[int, ...]:
        kind = self._game.get_type()
        if kind.dynamics not in (kind.Dynamics.SEQUENTIAL, kind.Dynamics.SIMULTANEOUS):
            raise ConfigError(
                f"environment: open_spiel:{game}: expected a game in turns or of simultaneous "
                f"moves, got {kind.dynamics}"
            )
        if self._shows_all:
            return tuple(self._game.information_state_tensor_shape())
        if kind.provides_observation_tensor:
            return tuple(self._game.observation_tensor_shape())
        raise ConfigError(
            f"environment: open_spiel:{game}: expected a game that shows tensors, and it shows none"
        )

    @property
    def agents(self) -> Sequence[str]:
        """Names of the players."""
        return self._agents

    def spaces(self, agent: str) -> Spaces:
        """Return what a player sees and may do: the same for all."""
        return self._spaces

    def reset(self, seed: int | None = None) -> dict[str, AgentTick]:
        """Deal a game."""
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self._state = self._game.new_initial_state()
        self._paid[:] = self._owed[:] = 0.0
        return self._ticks()

    def step(self, actions: Mapping[str, Nested]) -> dict[str, AgentTick]:
        """Take the action of the player whose turn it is, or of all who act at once."""
        state = self._state
        chosen = {self._agents.index(agent): int(action) for agent, action in actions.items()}
        for player, action in chosen.items():
            if action not in state.legal_actions(player):
                raise ConfigError(
                    f"action: expected one of {state.legal_actions(player)}, got {action}: the "
                    "policy is to mask its choices by observation['action_mask']"
                )
        if state.is_simultaneous_node():
            state.apply_actions([chosen.get(player, 0) for player in range(len(self._agents))])
        else:
            state.apply_action(*chosen.values())
        return self._ticks()

    def _ticks(self) -> dict[str, AgentTick]:
        state = self._state
        while state.is_chance_node():
            outcomes, chances = zip(*state.chance_outcomes(), strict=True)
            shares = np.asarray(chances) / sum(chances)
            state.apply_action(int(outcomes[self._random.choice(len(outcomes), p=shares)]))
        self._pay()
        if state.is_terminal():
            return {
                agent: AgentTick(None, self._take_reward(player), terminated=True)
                for player, agent in enumerate(self._agents)
            }
        if state.is_simultaneous_node():
            players = [p for p in range(len(self._agents)) if state.legal_actions(p)]
        else:
            players = [state.current_player()]
        return {self._agents[player]: self._tick(player) for player in players}

    def _pay(self) -> None:
        """Take the rewards of the last move; a game's end settles what is left of its returns."""
        state = self._state
        if state.is_terminal():
            got = np.asarray(state.returns()) - self._paid
        else:
            got = np.asarray(state.rewards())
        self._paid += got
        self._owed += got

    def _take_reward(self, player: int) -> float:
        owed, self._owed[player] = float(self._owed[player]), 0.0
        return owed

    def _tick(self, player: int) -> AgentTick:
        state = self._state
        seen = state.information_state_tensor if self._shows_all else state.observation_tensor
        mask = np.zeros(self._num_actions, np.int8)
        mask[state.legal_actions(player)] = 1
        observation = np.asarray(seen(player), np.float32).reshape(self._shape_of_one)
        return AgentTick(
            {"observation": observation, "action_mask": mask}, self._take_reward(player)
        )

    def render(self) -> str:
        """Return the game's state as OpenSpiel writes it."""
        return str(self._state)

    def close(self) -> None:
        """Forget the game."""
        self._state = None


def load_game(pyspiel: Any, game: str, kwargs: dict[str, Any]) -> Any:
    """Return OpenSpiel's game of a name, perhaps with parameters, or with them as `kwargs`.

    Raises:
        ConfigError: there is no such game or parameter.
    """
    name = game.partition("(")[0]
    known = pyspiel.registered_names()
    if name not in known:
        raise ConfigError(
            f"environment: OpenSpiel has no game {name!r}{closest(name, known)}: "
            "`pyspiel.registered_names()` lists them"
        )
    if kwargs and game != name:
        raise ConfigError(
            f"kwargs: expected none beside the parameters in {game!r}, got {kwargs}: write all in "
            "one place"
        )
    try:
        return pyspiel.load_game(game, kwargs) if kwargs else pyspiel.load_game(game)
    except (pyspiel.SpielError, TypeError) as error:
        words = str(error).splitlines()[0]
        raise ConfigError(f"environment: open_spiel:{game}, kwargs {kwargs}: {words}") from error
