"""Report on a policy of tic-tac-toe: against players that do not learn, and in every line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import count

import numpy as np
import numpy.typing as npt

from bray.games.match import Ints, MatchPlayer, PolicyPlayer, draw, play
from bray_algo.games import Boards, TicTacToe, solve
from bray_algo.games.boards import States
from bray_core import protocols

TIC_TAC_TOE = Boards(3, 3, 3)


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of games, 0 to 1."""

    won: float
    lost: float
    not_lost: float
    """Won or drawn: counted, so that it has no rounding of 1 − `lost`."""


@dataclass(frozen=True, slots=True)
class TicTacToeReport:
    """How the most likely actions of a policy do."""

    against_perfect: Shares
    """Shares of games against a player that draws among all perfect moves."""
    against_random: Shares
    """Shares of games against a player that draws among all legal moves."""
    positions_lost: int
    """Number of final positions in which some opponent beats it; 0 proves that it never loses."""


async def report(model: protocols.ModelProtocol, num_games: int, *, seed: int) -> TicTacToeReport:
    """Measure a policy of tic-tac-toe.

    Args:
        model: Model of the policy, as `PolicyPlayer` asks it.
        num_games: Number of games against each player, even: it moves first in half of them.
        seed: Seed of the players' draws.
    """
    policy = PolicyPlayer(TIC_TAC_TOE, model)
    random = RandomPlayer(TIC_TAC_TOE, np.random.default_rng(seed))
    return TicTacToeReport(
        await against_perfect(model, num_games, seed=seed),
        await against(TIC_TAC_TOE, policy, random, num_games),
        await positions_lost(TIC_TAC_TOE, policy),
    )


async def against_perfect(model: protocols.ModelProtocol, num_games: int, *, seed: int) -> Shares:
    """Return `TicTacToeReport.against_perfect` alone."""
    opponent = PerfectPlayer(_solution(), np.random.default_rng(seed))
    policy = PolicyPlayer(TIC_TAC_TOE, model)
    return await against(TIC_TAC_TOE, policy, opponent, num_games)


@cache
def _solution() -> dict[bytes, npt.NDArray[np.bool_]]:
    return solve(TicTacToe())


async def against(
    game: Boards, player: MatchPlayer, opponent: MatchPlayer, num_games: int
) -> Shares:
    """Return how a player does against another, with the first move in half of the games."""
    players, half = {"player": player, "opponent": opponent}, num_games // 2
    first = await play(game, players, [("player", "opponent")] * half)
    second = 1 - await play(game, players, [("opponent", "player")] * half)
    scores = np.concatenate([first, second])
    return Shares(*(float(is_so.mean()) for is_so in (scores == 1, scores == 0, scores > 0)))


async def positions_lost(game: Boards, player: MatchPlayer) -> int:
    """Return in how many final positions a player that leaves nothing to chance can be beaten.

    Plays every move of the other side, the player first and second, each position once: for small
    games. 0 proves that it never loses.
    """
    lost = 0
    for seat in (0, 1):
        states = game.initial(1)
        for move in count():
            if move % 2 == seat:
                states = game.step(states, await player.act(np.arange(len(states)), states))
            else:
                rows, actions = np.nonzero(game.legal(states))
                states = np.unique(game.step(states[rows], actions), axis=0)
            outcome = game.outcome(states)
            if move % 2 != seat:  # the player is to move, and has lost
                lost += int((outcome == -1).sum())
            states = states[np.isnan(outcome)]
            if not len(states):
                break
    return lost


class RandomPlayer:
    """A player that takes any legal action."""

    def __init__(self, game: Boards, rng: np.random.Generator) -> None:
        self._game = game
        self._rng = rng

    async def act(self, games: Ints, states: States) -> Ints:
        """Return uniformly drawn actions."""
        return draw(self._game.legal(states), self._rng)


class PerfectPlayer:
    """A player that takes any action that keeps a position's value, each equally likely.

    Args:
        perfect: Solution of the game, as `bray_algo.games.solve` returns it.
        rng: Source of the draws.
    """

    def __init__(
        self, perfect: Mapping[bytes, npt.NDArray[np.bool_]], rng: np.random.Generator
    ) -> None:
        self._perfect = perfect
        self._rng = rng

    async def act(self, games: Ints, states: States) -> Ints:
        """Look the positions up and return drawn actions."""
        return draw(np.stack([self._perfect[state.tobytes()] for state in states]), self._rng)
