"""Matches of two players, many games side by side: who moves together is asked together.

A player decides for many games at once. In each move the games are grouped by the player who is to
move, so that a version of a model answers all its games in one forward, and all groups are asked
concurrently, whatever process answers them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import count
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bray_algo.distributions import categorical
from bray_algo.games import Boards
from bray_algo.games.boards import States
from bray_core import protocols

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class MatchPlayer(Protocol):
    """Whoever moves: B games at a time."""

    async def act(self, games: Ints, states: States) -> Ints:
        """Return an action for each state `[B, …]`; `games [B]` are the numbers of the games."""
        ...


async def play(
    game: Boards,
    players: Mapping[str, MatchPlayer],
    pairs: Sequence[tuple[str, str]],
    states: States | None = None,
) -> Floats:
    """Play a game for each pair, side by side, and return the scores of those who move first.

    Args:
        game: Rules of the game.
        players: Players by name.
        pairs: Names of who moves first and of the other, one pair for each of N games.
        states: Positions that the games begin from, `[N, …]`, such as `openings` gives; None: the
            empty board.

    Returns:
        Scores `[N]`: 1 where the first won, 0.5 for a draw, 0 where the other won.
    """
    number = {name: index for index, name in enumerate(players)}
    seats = np.array([[number[first], number[second]] for first, second in pairs]).reshape(-1, 2)
    states = game.initial(len(seats)) if states is None else states.copy()
    scores = np.full(len(seats), 0.5)
    live = np.arange(len(seats))
    for move in count():
        if not len(live):
            break
        movers = seats[live, move % 2]
        actions = await _ask(list(players.values()), movers, live, states[live])
        states[live] = after = game.step(states[live], actions)
        outcome = game.outcome(after)  # for who moves next
        ended = ~np.isnan(outcome)
        scores[live[ended]] = (1 + (outcome if move % 2 else -outcome)[ended]) / 2
        live = live[~ended]
    return scores


def openings(game: Boards, number: int, max_moves: int, rng: np.random.Generator) -> States:
    """Return N positions after 0 to `max_moves` random moves, none of them ended.

    These are exploring starts: policies that have settled on a few lines of play see others too.
    """
    states, moves = game.initial(number), rng.integers(0, max_moves + 1, number)
    for move in range(max_moves):
        on = np.flatnonzero(moves > move)
        if not len(on):  # of few positions all may have had their moves
            break
        after = game.step(states[on], draw(game.legal(states[on]), rng))
        goes_on = np.isnan(game.outcome(after))
        states[on[goes_on]] = after[goes_on]
    return states


async def _ask(players: Sequence[MatchPlayer], movers: Ints, games: Ints, states: States) -> Ints:
    order = np.argsort(movers, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(movers[order])) + 1)
    answers = await asyncio.gather(
        *(players[int(movers[at[0]])].act(games[at], states[at]) for at in groups)
    )
    actions = np.empty(len(movers), np.int64)
    for at, answer in zip(groups, answers, strict=True):
        actions[at] = answer
    return actions


class MoveDecision(NamedTuple):
    """What a policy saw and did, B rows."""

    observation: npt.NDArray[np.float32]
    legal: npt.NDArray[np.bool_]
    action: Tensor
    log_prob: Tensor
    value: npt.NDArray[np.float32]


class PolicyPlayer:
    """A model with outputs `logits [B, A]` and `value [B]`, or one of its clones.

    Args:
        game: Rules of the game: what is observed, and which actions are legal.
        model: Model that is asked with `observation [B, D]`.
        generator: Source of its actions; None: it takes the most likely ones.
    """

    def __init__(
        self, game: Boards, model: protocols.ModelProtocol, generator: torch.Generator | None = None
    ) -> None:
        self._game = game
        self._model = model
        self._generator = generator

    async def act(self, games: Ints, states: States) -> Ints:
        """Return the actions of one forward."""
        return (await self.decide(states)).action.numpy()

    async def decide(self, states: States) -> MoveDecision:
        """Return the actions with all that a learner keeps of them."""
        observation, legal = self._game.observation(states), self._game.legal(states)
        # Drawn before the wait: players are asked in a fixed order, but answered in any.
        draws = self._forward_generator()
        outputs = await self._model.forward(observation, batch=True)
        logits = categorical.mask(torch.tensor(outputs["logits"]), torch.from_numpy(legal))
        action = categorical.sample(logits, draws) if draws else categorical.mode(logits)
        log_prob = categorical.log_prob(logits, action)
        return MoveDecision(observation, legal, action, log_prob, outputs["value"])

    def _forward_generator(self) -> torch.Generator | None:
        """Return a generator for one forward alone."""
        if self._generator is None:
            return None
        seed = torch.randint(2**62, (), generator=self._generator)
        return torch.Generator().manual_seed(int(seed))


def draw(allowed: npt.NDArray[np.bool_], rng: np.random.Generator) -> Ints:
    """Return one of the allowed actions of each row `[B, A]`, each as likely as the others."""
    return np.asarray((allowed * rng.random(allowed.shape)).argmax(1), np.int64)
