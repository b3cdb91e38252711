"""The recipe's composition on tic-tac-toe; its mathematics is tested in bray_algo."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bray
from bray.algorithms import alphazero
from bray.games.benchmark_opponents import BENCHMARK_OPPONENTS, benchmark_opponent
from bray.games.self_player import SelfPlayer, evaluator, network, position_layout
from bray.goal import Goal
from bray_algo.games import CONNECT_FOUR, TIC_TAC_TOE
from bray_algo.search.alphazero import evaluator as network_evaluator
from bray_algo.search.mcts import SearchConfig
from bray_buffer import BufferConfig, ReplayBuffer, ReplayConfig, make_buffer
from bray_core.cli import main
from bray_core.errors import ConfigError
from bray_core.layout import Packed
from bray_model import Model, ModelConfig

TINY: dict[str, Any] = {
    "num_games": 64,
    "num_simulations": 16,
    "play_simulations": 16,
    "hidden": (64,),
    "learning_rate": 3e-3,
    "minibatch_size": 128,
    "minibatches": 8,
    "num_random_moves": 6,
    "moves_per_round": 4,
    "capacity": 10_000,
    "evaluate_every": 4_000,
}


def goal(frames: int, games: int = 50) -> Goal:
    return Goal(episode_return=1.0, evaluation_episodes=games, max_frames=frames)


@pytest.mark.isa
def test_it_learns(tmp_path: Path) -> None:
    measure = benchmark_opponent("tic-tac-toe")
    module = network(TIC_TAC_TOE, TINY["hidden"], seed=3)
    before = measure.measure(network_evaluator(module), 50, num_simulations=16, seed=0)
    with bray.init(tmp_path, "one") as run:
        told: list[Mapping[str, float]] = []
        run.listen(lambda figures, save: told.append(figures))
        outcome = alphazero.AlphaZero.of("tic-tac-toe", **TINY).train(run, goal=goal(4_000), seed=3)
        written = run.experiment.checkpoints
        assert list(written.iterdir())
        result = json.loads((run.experiment.path / "result.json").read_text())
    assert result == asdict(outcome)
    assert outcome.measured.losses < 0.5 * before.losses
    assert outcome.evaluation_return == outcome.measured.share
    assert outcome.frames >= 4_000
    assert told[-1]["evaluation_return"] == outcome.evaluation_return
    assert told[-1]["frames"] == outcome.frames
    assert outcome.version == outcome.frames * 8 // 1024


def test_positions_are_turned_as_one(tmp_path: Path) -> None:
    layout = position_layout(TIC_TAC_TOE)
    replay = ReplayBuffer(layout, ReplayConfig(capacity=10, batch_size=1))
    config = alphazero.AlphaZero.of("tic-tac-toe", **TINY).config
    trainer = alphazero.AlphaZeroTrainer(TIC_TAC_TOE, TINY["hidden"], config, 0, None, replay)
    block = layout.empty(512)
    leaves: Any = layout.views(block)
    board = np.array([[1, -1, 0], [0, 0, 0], [0, 0, 0]])  # a turn of it is never itself
    leaves["observation"][...] = [board == 1, board == -1]
    leaves["policy"][...] = [0, 0, 0.25, 0, 0, 0, 0, 0, 0.75]
    leaves["outcome"][...] = np.linspace(-1, 1, 512)
    batches = list(trainer.handle(Packed(layout, block)))
    assert len(batches) == 4
    assert torch.cat([b["outcome"] for b in batches]).tolist() == leaves["outcome"].tolist()
    for batch in batches:  # the cell of 0.25 lies beside the other's stone, that of 0.75 opposite
        planes, policy = batch["observation"][0], batch["policy"][0].view(3, 3)
        mine, far = planes[0].nonzero()[0], (policy == 0.75).nonzero()[0]
        assert (mine + far).tolist() == [2, 2]
        other, near = planes[1].nonzero()[0], (policy == 0.25).nonzero()[0]
        assert (mine + near).tolist() == (2 * other).tolist()
    boards = {tuple(b["observation"][0].flatten().tolist()) for b in batches}
    assert len(boards) > 1
    _, terms = trainer.loss(batches[0], 0)
    assert set(terms) >= {"policy_loss", "value_loss"}
    state = trainer.state_dict()
    first = [b["observation"] for b in trainer.handle(Packed(layout, block))]
    trainer.load_state_dict(state)
    again = [b["observation"] for b in trainer.handle(Packed(layout, block))]
    assert all(map(torch.equal, first, again))


def test_a_player_pushes_ended_games() -> None:
    game = TIC_TAC_TOE
    module = network(game, TINY["hidden"], seed=0)
    example = game.observation(game.initial(1))
    buffer = make_buffer(position_layout(game), BufferConfig(batch_size=1, capacity=1000))
    with Model(module, example, config=ModelConfig(max_batch_size=8)) as model:
        player = SelfPlayer(
            game,
            model,
            buffer,
            num_games=8,
            search=SearchConfig(num_simulations=8),
            num_random_moves=9,
            seed=0,
        )
        assert player.play(4) == 0
        pushed = player.play(5)
        assert pushed == buffer.stats()["queued"] >= 5 * 8
        states = game.observation(game.initial(3))
        for mine, same in zip(
            evaluator(model)(states), network_evaluator(module)(states), strict=True
        ):
            np.testing.assert_allclose(np.asarray(mine), np.asarray(same), atol=1e-6)
    for name in ("observation", "policy", "outcome"):
        assert name in buffer.pop().tree  # type: ignore[operator]


def test_benchmark_opponents() -> None:
    def knows_nothing(observation: Any) -> tuple[Any, Any]:
        return np.zeros((len(observation), 7)), np.zeros(len(observation))

    measure = benchmark_opponent("connect-four")
    assert measure.game is CONNECT_FOUR
    found = measure.measure(knows_nothing, 10, num_simulations=8, seed=0)
    assert found.wins + found.draws + found.losses == 10
    assert found.share == found.wins / 10
    assert found == measure.measure(knows_nothing, 10, num_simulations=8, seed=0)
    strong = BENCHMARK_OPPONENTS["connect-four-rows"].measure(
        knows_nothing, 6, num_simulations=8, seed=0
    )
    assert strong.losses >= 5
    with pytest.raises(ConfigError, match=r"task: expected one of tic-tac-toe, .*'chess'"):
        benchmark_opponent("chess")


def test_nonsense_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="num_games: expected 1 or more, got 0"):
        alphazero.AlphaZero.of("tic-tac-toe", num_games=0)
    with pytest.raises(ConfigError, match=r"hidden: expected numbers of 1 or more, got \(0,\)"):
        alphazero.AlphaZero.of("tic-tac-toe", hidden=(0,))
    with pytest.raises(ConfigError, match=r"^buffer\.capacity: expected 4,096 or more, .* got 5"):
        alphazero.AlphaZero.of("connect-four", capacity=5)
    with bray.init(tmp_path, "x") as run, pytest.raises(ConfigError, match="task: expected"):
        alphazero.AlphaZero.of("go").train(run, goal=goal(1))


@pytest.mark.ray
@pytest.mark.slow  # appo's and those of rollouts and workers show the same in less time
def test_the_trainer_keeps_up_on_ray(tmp_path: Path, ray_cluster: None) -> None:
    few = {**TINY, "evaluate_every": 6_000, "capacity": 2_048}
    with bray.init(tmp_path, "ray", "ray") as run:
        outcome = alphazero.AlphaZero.of("tic-tac-toe", **few).train(run, goal=goal(6_000, games=2))
    # 8 times 6,000 positions are 46 replays; 24 of them may be due (inbox, warm-up and margin).
    assert outcome.version >= 12


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("game", "least", "games"), [("tic-tac-toe", "1", "1000"), ("connect-four", "0.9", "400")]
)
def test_it_reaches_its_goal(
    game: str, least: str, games: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [game, "--goal", least, "--episodes", games, "--frames", "1000000", "--json"]
    assert main(["train", "alphazero", *arguments, "--project", str(tmp_path)]) == 0
    outcome = json.loads(capsys.readouterr().out)
    assert outcome["evaluation_return"] >= float(least)
