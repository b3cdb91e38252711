"""What a policy of tic-tac-toe is worth: against players that do not learn, and in every line."""

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
    """Of games, 0 to 1."""

    won: float
    lost: float
    not_lost: float
    """Won or drawn: counted, so that it has no rounding of 1 − `lost`."""


@dataclass(frozen=True, slots=True)
class TicTacToeReport:
    """How the most likely actions of a policy do."""

    against_perfect: Shares
    """A player that draws among all perfect moves."""
    against_random: Shares
    """One that draws among all legal moves."""
    positions_lost: int
    """Final positions in which any opponent whatever beats it; 0 proves that it never loses."""


async def report(model: protocols.ModelProtocol, num_games: int, *, seed: int) -> TicTacToeReport:
    """Measure a policy of tic-tac-toe.

    Args:
        model: as for `PolicyPlayer`.
        num_games: against each player, even: it moves first in half of them.
        seed: of their draws.
    """
    policy = PolicyPlayer(TIC_TAC_TOE, model)
    random = RandomPlayer(TIC_TAC_TOE, np.random.default_rng(seed))
    return TicTacToeReport(
        await against_perfect(model, num_games, seed=seed),
        await against(TIC_TAC_TOE, policy, random, num_games),
        await positions_lost(TIC_TAC_TOE, policy),
    )


async def against_perfect(model: protocols.ModelProtocol, num_games: int, *, seed: int) -> Shares:
    """Return `Report.against_perfect` alone."""
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
    """Return in how many final positions a player that draws no lots can be beaten, by anyone.

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
    """Takes any legal action."""

    def __init__(self, game: Boards, rng: np.random.Generator) -> None:
        self._game = game
        self._rng = rng

    async def act(self, games: Ints, states: States) -> Ints:
        """Return uniformly drawn actions."""
        return draw(self._game.legal(states), self._rng)


class PerfectPlayer:
    """Takes any of the actions that keep a position's value, each as likely as the others.

    Args:
        perfect: as `bray_algo.games.solve` returned it.
        rng: of the draws.
    """

    def __init__(
        self, perfect: Mapping[bytes, npt.NDArray[np.bool_]], rng: np.random.Generator
    ) -> None:
        self._perfect = perfect
        self._rng = rng

    async def act(self, games: Ints, states: States) -> Ints:
        """Look the positions up and return drawn actions."""
        return draw(np.stack([self._perfect[state.tobytes()] for state in states]), self._rng)
