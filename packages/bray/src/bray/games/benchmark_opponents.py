"""Board games, and the opponents that a player of them is measured against."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bray_algo.games import (
    CONNECT_FOUR,
    TIC_TAC_TOE,
    RowGame,
    action_values,
    best_actions,
    play_match,
)
from bray_algo.games.full_width import Heuristic, open_rows
from bray_algo.search.mcts import Evaluate, SearchConfig, search
from bray_core.settings.choice import check_choice


@dataclass(frozen=True, slots=True)
class MeasuredOpponent:
    """How games against a yardstick ended."""

    share: float
    """Of the games that count."""
    wins: int
    draws: int
    losses: int


@dataclass(frozen=True, slots=True)
class Yardstick:
    """A search of every move to a depth, that chooses at random among the best ones."""

    game: RowGame
    depth: int
    """Moves that the opponent looks ahead."""
    least: float
    """Outcome of a game that counts: 1 a win, 0 a draw too."""
    heuristic: Heuristic | None = None
    """Of the opponent, for what lies beyond its depth; None: all alike."""

    def measure(
        self, evaluate: Evaluate, num_games: int, *, num_simulations: int, seed: int
    ) -> MeasuredOpponent:
        """Play a network's search against the opponent; each begins every second game.

        Args:
            evaluate: the policy-value function.
            num_games: played side by side.
            num_simulations: of each of the player's moves, the most visited of which is played.
            seed: of the opponent's choices.
        """
        rng, game = np.random.default_rng(seed), self.game
        config = SearchConfig(num_simulations=num_simulations, noise_fraction=0)
        outcomes = play_match(
            game,
            lambda states: search(game, states, evaluate, config, rng).argmax(1),
            lambda states: best_actions(
                action_values(game, states, self.depth, self.heuristic), rng
            ),
            num_games,
        )
        return MeasuredOpponent(
            float((outcomes >= self.least).mean()),
            wins=int((outcomes > 0).sum()),
            draws=int((outcomes == 0).sum()),
            losses=int((outcomes < 0).sum()),
        )


YARDSTICKS = {
    "tic-tac-toe": Yardstick(TIC_TAC_TOE, 9, 0.0),
    "connect-four": Yardstick(CONNECT_FOUR, 4, 1.0),
    "connect-four-rows": Yardstick(CONNECT_FOUR, 4, 1.0, open_rows(CONNECT_FOUR)),
}
"""A perfect player, to whom no game may be lost; depth 4, against which games must be won; the same
with a heuristic, which is stronger and leaves little to chance."""


def yardstick(task: str) -> Yardstick:
    """Look up what a player of a game is measured by.

    Raises:
        ConfigError: there is none of that name.
    """
    check_choice("task", task, YARDSTICKS)
    return YARDSTICKS[task]
