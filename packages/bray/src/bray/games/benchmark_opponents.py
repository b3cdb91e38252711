"""Benchmark opponents: what a player of a board game is measured against."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bray.games.board_game import PREFIX
from bray.games.open_spiel_board import OpenSpielBoard
from bray_actor.multi_agent.making import OPEN_SPIEL
from bray_algo.games import (
    CONNECT_FOUR,
    TIC_TAC_TOE,
    PlanesGame,
    action_values,
    best_actions,
    play_match,
)
from bray_algo.games.full_width import Heuristic, open_rows
from bray_algo.search.mcts import Evaluate, SearchConfig, search
from bray_core.errors import ConfigError
from bray_core.settings.choice import closest

_OPPONENT_POSITIONS = 1000


@dataclass(frozen=True, slots=True)
class BenchmarkResult:
    """How games against a benchmark opponent ended."""

    share: float
    """Share of the games that count as a success, 0 to 1."""
    wins: int
    draws: int
    losses: int


@dataclass(frozen=True, slots=True)
class BenchmarkOpponent:
    """An opponent that searches every move to a depth and takes one of the best at random."""

    game: PlanesGame
    depth: int
    """Moves that the opponent looks ahead; each more makes it stronger and several times slower."""
    least: float
    """Least outcome that counts as a success: at 1 a win alone, at 0 a draw too."""
    heuristic: Heuristic | None = None
    """Heuristic of the opponent for positions at its depth; None counts them all alike."""

    def measure(
        self, evaluate: Evaluate, num_games: int, *, num_simulations: int, seed: int
    ) -> BenchmarkResult:
        """Play a network's search against the opponent; each begins every second game.

        Args:
            evaluate: Policy-value function of the network.
            num_games: Number of games, played side by side; 100 tell a share to about ±0.1.
            num_simulations: Simulations for each move of the player, which takes the most visited
                one; more play better.
            seed: Seed of the opponent's choices.
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
        return BenchmarkResult(
            float((outcomes >= self.least).mean()),
            wins=int((outcomes > 0).sum()),
            draws=int((outcomes == 0).sum()),
            losses=int((outcomes < 0).sum()),
        )


BENCHMARK_OPPONENTS = {
    "tic-tac-toe": BenchmarkOpponent(TIC_TAC_TOE, 9, 0.0),
    "connect-four": BenchmarkOpponent(CONNECT_FOUR, 4, 1.0),
    "connect-four-rows": BenchmarkOpponent(CONNECT_FOUR, 4, 1.0, open_rows(CONNECT_FOUR)),
}
"""Opponents by name of the task. Tic-tac-toe's is perfect, so not losing is success; connect four's
looks 4 moves ahead and must be beaten; with a heuristic it is stronger and leaves less to
chance."""


def benchmark_opponent(task: str) -> BenchmarkOpponent:
    """Return the opponent that players of a game are measured against.

    In a game of OpenSpiel it looks as far ahead as about a thousand positions allow, four moves at
    most, and must be beaten.

    Raises:
        ConfigError: there is none of that name, or a search cannot play the game.
        MissingExtraError: a game of OpenSpiel, which is not installed.
    """
    if task.startswith(OPEN_SPIEL):
        game = OpenSpielBoard(task.removeprefix(OPEN_SPIEL))
        depth = int(np.log(_OPPONENT_POSITIONS) / np.log(max(2, game.num_actions)))
        return BenchmarkOpponent(game, min(max(depth, 1), 4), 1.0)
    task = task.removeprefix(PREFIX)
    if task not in BENCHMARK_OPPONENTS:
        raise ConfigError(
            f"task: expected one of {', '.join(BENCHMARK_OPPONENTS)}, or "
            f"{OPEN_SPIEL}GAME, got {task!r}{closest(task, BENCHMARK_OPPONENTS)}"
        )
    return BENCHMARK_OPPONENTS[task]
