"""Games side by side: whose move, who won, who is asked together; and the report."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch

from bray.games.match import PolicyPlayer, openings, play
from bray.games.recording_player import MOVE, RecordingPlayer
from bray.games.tic_tac_toe_report import (
    PerfectPlayer,
    RandomPlayer,
    against,
    against_perfect,
    positions_lost,
    report,
)
from bray_algo.games import Boards, TicTacToe, solve
from bray_core.protocols import Answer

GAME = Boards(3, 3, 3)
PERFECT = solve(TicTacToe())


class First:
    """Takes the first empty cell, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[int], Any]] = []

    async def act(self, games: Any, states: Any) -> Any:
        self.asked.append((games.tolist(), states.copy()))
        return GAME.legal(states).argmax(1)


class Network:
    """A model that likes the cells in a given order; counts its forwards."""

    version = 3

    def __init__(self, order: list[int]) -> None:
        self.logits = -np.argsort(order).astype(np.float32)
        self.rows: list[int] = []

    async def forward(self, observation: Any, batch: bool = False) -> Any:
        assert batch
        assert observation.shape[1] == GAME.observation_size
        self.rows.append(len(observation))
        value = observation.sum(1)
        return {"logits": np.tile(self.logits, (len(observation), 1)), "value": value}

    async def infer(self, *inputs: Any, batch: bool = False) -> Answer:
        return Answer(await self.forward(*inputs, batch=batch), self.version)


def test_scores_are_those_of_the_first_mover() -> None:
    first, last = First(), Network([8, 7, 6, 5, 4, 3, 2, 1, 0])
    players: Any = {"first": first, "last": PolicyPlayer(GAME, last)}
    pairs = [("first", "last"), ("last", "first"), ("first", "first")]
    assert asyncio.run(play(GAME, players, pairs)).tolist() == [1.0, 1.0, 1.0]
    # 0, 8, 1, 7, 2: a row on top; the mirror image; 0 1 2 3 4 5 6: a diagonal
    both, alone = first.asked[0], first.asked[1]
    assert both[0] == [0, 2]  # one call for all its games
    assert alone[0] == [1, 2]  # by then it moves second in game 1, and in its own game
    assert last.rows == [1, 1, 1, 1, 1]
    assert asyncio.run(play(GAME, players, [])).tolist() == []


def test_the_second_mover_wins_too_and_full_boards_are_drawn() -> None:
    bad, good = Network([0, 1, 3, 2, 4, 5, 6, 7, 8]), Network([2, 4, 6, 5, 7, 8, 0, 1, 3])
    players = {"bad": PolicyPlayer(GAME, bad), "good": PolicyPlayer(GAME, good)}
    assert asyncio.run(play(GAME, players, [("bad", "good")])).tolist() == [0.0]
    rng = np.random.default_rng(0)
    two: Any = {"a": PerfectPlayer(PERFECT, rng), "b": PerfectPlayer(PERFECT, rng)}
    assert (asyncio.run(play(GAME, two, [("a", "b")] * 50)) == 0.5).all()


def test_games_may_begin_later() -> None:
    states = openings(GAME, 500, 3, np.random.default_rng(0))
    stones = (states != 0).sum((1, 2))
    assert np.bincount(stones, minlength=4).min() > 80  # 0 to 3, each as likely
    assert np.bincount(stones).tolist() == [*np.bincount(stones)[:4]]
    assert (states.sum((1, 2)) == -(stones % 2)).all()  # seen by who moves next
    random: Any = {"a": RandomPlayer(GAME, np.random.default_rng(1))}
    before = states.copy()
    asyncio.run(play(GAME, random, [("a", "a")] * 500, states))
    assert (states == before).all()
    late = openings(GAME, 500, 9, np.random.default_rng(0))
    assert np.isnan(GAME.outcome(late)).all()


def test_perfect_players_beat_those_that_err_and_random_ones_err() -> None:
    rng = np.random.default_rng(0)
    perfect, random = PerfectPlayer(PERFECT, rng), RandomPlayer(GAME, rng)
    found = asyncio.run(against(GAME, perfect, random, 400))
    assert (found.lost, found.not_lost) == (0, 1)
    assert found.won > 0.7
    assert asyncio.run(against(GAME, random, perfect, 400)).lost > 0.7


class PerfectNetwork:
    """A model whose logits are the table of perfect moves."""

    version = 0

    async def forward(self, observation: Any, batch: bool = False) -> Any:
        boards = (observation[:, :9] - observation[:, 9:]).astype(np.int8)
        logits = np.array([PERFECT[board.tobytes()] for board in boards], np.float32)
        return {"logits": logits, "value": np.zeros(len(boards), np.float32)}


def test_who_never_loses_is_proved_so_and_who_can_be_beaten_is_found_out() -> None:
    perfect: Any = PerfectNetwork()
    fool: Any = Network(list(range(9)))
    assert asyncio.run(positions_lost(GAME, PolicyPlayer(GAME, perfect))) == 0
    assert asyncio.run(positions_lost(GAME, PolicyPlayer(GAME, fool))) > 10
    found = asyncio.run(report(perfect, 200, seed=0))
    assert (found.against_perfect.lost, found.against_random.lost) == (0, 0)
    assert found.positions_lost == 0
    assert found.against_random.won > 0.7
    beaten = asyncio.run(against_perfect(fool, 200, seed=0))
    assert beaten.lost > 0.5
    assert beaten.lost + beaten.not_lost == pytest.approx(1)


def test_actions_are_legal_and_drawn_or_the_most_likely() -> None:
    model: Any = Network([4, 0, 1, 2, 3, 5, 6, 7, 8])
    states = np.repeat(GAME.step(GAME.initial(1), np.array([4])), 2000, 0)
    greedy = asyncio.run(PolicyPlayer(GAME, model).decide(states))
    assert (greedy.action == 0).all()
    drawn = PolicyPlayer(GAME, model, torch.Generator().manual_seed(0))
    decision = asyncio.run(drawn.decide(states))
    shares = np.bincount(decision.action.numpy(), minlength=9) / 2000
    chances = np.exp(model.logits) * (np.arange(9) != 4)
    assert np.allclose(shares, chances / chances.sum(), atol=0.04)
    assert np.allclose(decision.log_prob.exp(), (chances / chances.sum())[decision.action])


def test_a_learner_writes_its_own_moves_down() -> None:
    model: Any = Network(list(range(9)))
    learner = RecordingPlayer(GAME, model, torch.Generator().manual_seed(0), 2)
    players: Any = {"learner": learner, "first": First()}
    pairs = [("learner", "first"), ("first", "learner")]
    scores = asyncio.run(play(GAME, players, pairs))
    assert learner.moves.min() >= 2
    packed = learner.end(np.array([scores[0], 1 - scores[1]]))
    games: Any = packed.tree
    assert set(games) == {*MOVE, "length", "result"}
    assert games["result"].tolist() == [2 * scores[0] - 1, 1 - 2 * scores[1]]
    for game, begins in ((0, True), (1, False)):
        stones = games["observation"][game].sum(1)
        length = games["length"][game]
        assert stones[:length].tolist() == list(range(0 if begins else 1, 9, 2))[:length]
        moves = games["action"][game, :length]
        assert len(set(moves)) == length
        assert games["legal"][game, range(length), moves].all()
        assert (games["value"][game, :length] == stones[:length]).all()


@pytest.mark.parametrize("number", [0, 1, 2])
def test_few_openings_may_all_have_had_their_moves(number: int) -> None:
    for seed in range(8):  # of one position a quarter has none at all
        assert len(openings(GAME, number, 3, np.random.default_rng(seed))) == number
