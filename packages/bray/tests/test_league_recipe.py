"""The league on matrix games: policy gradient, restarts, resumption, and exploitability."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bray
from bray.algorithms import league
from bray.algorithms.league import LAYOUT, NAIVE, ROLES, LeagueConfig, MatrixGameLeague
from bray.games.matrix_game import GAMES, antisymmetric, cycle, named_game, play, scores
from bray.goal import Goal
from bray_buffer import Buffer, BufferConfig
from bray_core.errors import ConfigError
from bray_core.layout import Packed

RPS = GAMES["rock-paper-scissors"]
NAMES = [*ROLES, NAIVE]
GOAL = Goal(episode_return=-0.05)


def make_trainer(tmp_path: Path, start: Any) -> league.LeagueTrainer:
    buffers = {name: Buffer(LAYOUT, BufferConfig(batch_size=6)) for name in start}
    return league.LeagueTrainer(LeagueConfig(learning_rate=1.0), start, buffers, None, tmp_path)


def games(actions: list[int], rewards: list[float], restart: bool = False) -> Packed:
    block = LAYOUT.empty(len(actions))
    views: Any = LAYOUT.views(block)
    views["action"][:], views["reward"][:], views["restart"][:] = actions, rewards, restart
    return Packed(LAYOUT, block)


def test_a_step_is_the_policy_gradient_and_a_restart_gives_the_first_weights(
    tmp_path: Path,
) -> None:
    start = {name: torch.tensor([0.3, -0.2, 0.1]) for name in NAMES}
    trainer = make_trainer(tmp_path, start)
    actions, rewards = [0, 0, 1, 1, 2, 2], [1.0, 1.0, -1.0, 0.0, 0.0, -1.0]
    for name, buffer in trainer.buffer.items():  # type: ignore[union-attr]
        buffer.push(games(actions, rewards, restart=name == "main_exploiter"))
    trainer.run(1)
    chances = torch.softmax(start["main"], 0)
    gain = np.array(rewards) - np.mean(rewards)
    score = np.eye(3)[actions] - chances.numpy()  # of log p(a) in the logits
    wanted = start["main"].numpy() + (gain[:, None] * score).mean(0)
    found = {name: module.logits.detach().numpy() for name, module in trainer.module.items()}
    for name in ("main", "league_exploiter", NAIVE):
        assert np.allclose(found[name], wanted, atol=1e-6)
    assert np.allclose(found["main_exploiter"], start["main_exploiter"])
    for buffer in trainer.buffer.values():  # type: ignore[union-attr]
        buffer.push(games(actions, rewards, restart=True))
    trainer.run(1)
    assert all(np.allclose(m.logits.detach(), start[n]) for n, m in trainer.module.items())


def test_any_matrix_becomes_a_game_of_equals() -> None:
    assert (antisymmetric(RPS) == np.array(RPS)).all()
    assert np.allclose(antisymmetric(10 * np.array(RPS)), RPS)
    pennies = antisymmetric(GAMES["matching-pennies"])
    assert pennies.shape == (4, 4)
    assert np.allclose(pennies, -pennies.T)
    assert np.abs(pennies).max() == 1
    for bad in ([[0, 0], [0, 0]], [1, 2], [[np.nan]], [[1, 2], [3]], {"a": 1}, None):
        with pytest.raises(ConfigError, match="payoff: expected finite"):
            antisymmetric(bad)


def test_games_have_names_or_are_json() -> None:
    assert named_game("rock-paper-scissors") == RPS
    assert named_game("[[0, 1], [-1, 0]]") == [[0, 1], [-1, 0]]
    with pytest.raises(ConfigError, match=r"task: expected one of .*did you mean 'rock-paper-sc"):
        named_game("rock-paper")


def test_fractional_payoffs_are_won_fairly() -> None:
    found = scores(np.repeat([-1.0, 0.0, 1.0, 0.5], 4000), np.random.default_rng(0))
    assert found[:12000] == [0.0] * 4000 + [0.5] * 4000 + [1.0] * 4000
    assert set(found[12000:]) == {0.0, 1.0}
    assert np.mean(found[12000:]) == pytest.approx(0.75, abs=0.03)


def test_a_cycle_is_measured() -> None:
    pure = np.eye(3)
    found = cycle(np.array(RPS, float), [pure[0], pure[1], pure[1], np.full(3, 1 / 3), pure[2]])
    assert found.exploitability == pytest.approx(4 / 5)
    assert (found.least, found.turns) == (pytest.approx(0), 3)


def test_games_are_drawn_from_both_mixtures() -> None:
    rng = np.random.default_rng(0)
    rock, even = np.array([1.0, 0, 0]), np.full(3, 1 / 3)
    actions, won = play(np.array(RPS, float), rock, even, 3000, rng)
    assert (actions == 0).all()
    assert [(won == x).mean() for x in (-1, 0, 1)] == pytest.approx([1 / 3] * 3, abs=0.04)


def test_a_short_league_freezes_resumes_and_counts(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    for before, rounds in ((0, 12), (12, 20)):
        config = {"rounds": rounds, "games_per_round": 16, "period": 4, "rating_games": 2}
        with bray.init(tmp_path, "trial") as run:
            outcome = league.MatrixGameLeague.of("rock-paper-scissors", **config).train(
                run, goal=GOAL, seed=1
            )
        state = json.loads((tmp_path / "trial" / "league.json").read_text())
        assert state["rounds"] == rounds
        assert outcome.frozen == len(state["versions"]) >= 3 + (rounds - 1) // 4
        assert outcome.frames == 16 * (rounds - before) * 3
        assert set(state["league"]["frozen"].values()) == set(ROLES)
        assert -1 <= outcome.evaluation_return <= 0


def test_the_goal_is_minus_the_exploitability_and_progress_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = {"rounds": 100, "games_per_round": 8, "rating_games": 2}
    task, sure = json.dumps([[0, 1], [-1, 0]]), Goal(episode_return=-2)
    with bray.init(tmp_path, "x") as run, caplog.at_level("INFO", "bray"):
        told: list[Mapping[str, float]] = []
        run.listen(lambda figures, save: told.append(figures))
        outcome = league.MatrixGameLeague.of(task, **config).train(run, goal=sure)
    assert outcome.reached
    assert told == [outcome.figures()]
    assert any(line.startswith("round 100: naive ") for line in caplog.messages)
    told = [line for line in caplog.messages if "exploitability" in line]
    assert told[-1].endswith(f"exploitability {-outcome.evaluation_return:.3f}")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_league_finds_the_equilibrium_where_naive_self_play_cycles(
    tmp_path: Path, seed: int
) -> None:
    torch.set_num_threads(1)
    with bray.init(tmp_path, "trial") as run:
        outcome = league.MatrixGameLeague.of("rock-paper-scissors").train(run, goal=GOAL, seed=seed)
    assert outcome.reached
    assert outcome.evaluation_return > -0.05
    assert outcome.naive.least > 0.05
    assert outcome.naive.exploitability > 0.3
    assert outcome.naive.turns >= 3  # once round, at least, in the last third of the rounds


@pytest.mark.slow
@pytest.mark.parametrize("game", ["rock-paper-scissors-well", "matching-pennies"])
def test_other_matrices_have_their_equilibria_found(tmp_path: Path, game: str) -> None:
    torch.set_num_threads(1)
    with bray.init(tmp_path, "trial") as run:
        assert (
            league.MatrixGameLeague.of(game)
            .train(run, goal=Goal(episode_return=-0.1), seed=1)
            .reached
        )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounds": 0}, "rounds: expected 1 or more, got 0"),
        ({"games_per_round": 9}, "games_per_round: expected a multiple of matches_per_round=8"),
    ],
)
def test_settings_are_checked(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MatrixGameLeague.of("rock-paper-scissors", **settings)
