"""Self-play: the trainer's own arithmetic, a short run that learns, its resumption, the goal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bray
from bray.algorithms import selfplay
from bray.algorithms.selfplay import SelfPlayConfig, SelfPlayPPO
from bray.games.recording_player import layout
from bray.games.tic_tac_toe_report import TIC_TAC_TOE as GAME
from bray.goal import Goal
from bray_buffer import Buffer, BufferConfig
from bray_core.errors import ConfigError
from bray_core.layout import Packed

SHORT = {
    "games_per_round": 128,
    "freeze_every": 10,
    "evaluate_every": 20,
    "rating_games": 2,
    "hidden": (64,),
}
NEVER = 1.1
"""A goal that no policy reaches."""


def goal(frames: int, share: float = NEVER, episodes: int = 50) -> Goal:
    return Goal(episode_return=share, max_frames=frames, evaluation_episodes=episodes)


def games(lengths: list[int], results: list[float]) -> Packed:
    rng = np.random.default_rng(0)
    segments = layout(GAME)
    block = segments.empty(len(lengths))
    views: Any = segments.views(block)
    for name in ("observation", "value", "log_prob"):
        views[name][...] = rng.normal(size=views[name].shape)
    views["legal"][...] = True
    views["action"][...] = rng.integers(0, 9, views["action"].shape)
    views["length"][:], views["result"][:] = lengths, results
    return Packed(segments, block)


def make_trainer(tmp_path: Path, **settings: Any) -> selfplay.SelfPlayTrainer:
    buffer = Buffer(layout(GAME), BufferConfig(batch_size=3))
    return selfplay.SelfPlayTrainer(
        SelfPlayConfig(**settings), (128, 128), 0, buffer, None, tmp_path
    )


def test_every_move_is_credited_with_the_end_of_its_game(tmp_path: Path) -> None:
    replay = games([4, 2, 5], [1.0, -1.0, 0.0])
    views: Any = replay.tree
    trainer = make_trainer(tmp_path, gae_lambda=1.0, epochs=2, minibatch_size=4)
    batches = list(trainer.handle(replay))
    assert [len(batch["action"]) for batch in batches] == [4, 4, 3] * 2
    for half in (batches[:3], batches[3:]):
        found = torch.cat([batch["advantage"] + batch["value"] for batch in half])
        assert sorted(found.round().tolist()) == [-1.0] * 2 + [0.0] * 5 + [1.0] * 4
        values = torch.cat([batch["value"] for batch in half])
        valid = np.arange(5) < views["length"][:, None]
        assert np.allclose(sorted(values.tolist()), sorted(views["value"][valid]))
    loss, terms = trainer.loss(batches[0], 0)
    assert torch.isfinite(loss)
    assert set(terms) >= {"policy_loss", "value_loss", "entropy", "approx_kl"}


@pytest.mark.isa
def test_it_learns_keeps_its_league_and_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torch.set_num_threads(1)
    with bray.init(tmp_path, "trial") as run, caplog.at_level("INFO", "bray"):
        first = selfplay.SelfPlayPPO.of("tic-tac-toe", **SHORT).train(
            run, goal=goal(8_000, episodes=200)
        )
    assert not first.reached
    rounds = first.games // 128
    assert first.versions == rounds // 10 >= 1
    assert 8_000 <= first.frames < 8_000 + 128 * 5
    assert 2 * first.games < first.frames < 5 * first.games
    assert first.report.against_random.won > 0.6  # two that move at random: 0.44
    assert first.evaluation_return == first.report.against_perfect.not_lost
    told = [line for line in caplog.messages if "lost to perfect play" in line]
    assert told[-1].startswith(f"{first.games} games: ")
    trial = tmp_path / "trial"
    state = json.loads((trial / "league.json").read_text())
    played = [row[-1] for row in state["payoff"]["results"]]
    assert played == [2] * (first.versions * (first.versions - 1) // 2)
    with bray.init(tmp_path, "trial") as run:
        second = selfplay.SelfPlayPPO.of("tic-tac-toe", **SHORT).train(run, goal=goal(4_000))
    assert second.frames < first.frames
    assert second.games > first.games
    assert second.versions == second.games // 1280 > first.versions
    state = json.loads((trial / "league.json").read_text())
    played = [row[-1] for row in state["payoff"]["results"]]
    assert played == [2] * (second.versions * (second.versions - 1) // 2)


def test_it_ends_when_an_evaluation_reaches_the_goal(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    short = {"games_per_round": 64, "evaluate_every": 2, "hidden": (16,), "rating_games": 0}
    with bray.init(tmp_path, "trial") as run:
        told: list[Mapping[str, float]] = []
        run.listen(lambda figures, save: told.append(figures))
        outcome = selfplay.SelfPlayPPO.of("tic-tac-toe", **short).train(
            run, goal=goal(10**6, share=0.0)
        )
    assert outcome.reached
    assert [figures["frames"] for figures in told] == [outcome.frames]
    assert 0 <= told[0]["evaluation_return"] <= 1
    assert outcome.games == 2 * 64


@pytest.mark.ray
@pytest.mark.slow  # appo's and those of rollouts and workers show the same in less time
@pytest.mark.timeout(240)
def test_the_same_recipe_runs_on_ray_and_goes_on_there(tmp_path: Path, ray_cluster: None) -> None:
    short = {"games_per_round": 32, "freeze_every": 2, "evaluate_every": 4, "hidden": (16,)}
    played = 0
    for _ in range(2):
        with bray.init(tmp_path, "trial", "ray") as run:
            outcome = selfplay.SelfPlayPPO.of("tic-tac-toe", **short).train(
                run, goal=goal(400, episodes=20)
            )
        assert outcome.games > played
        assert outcome.versions == outcome.games // 64
        played = outcome.games


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("opponents", ["pfsp", "past", "champion"])
def test_it_never_loses_to_a_perfect_player(tmp_path: Path, opponents: Any) -> None:
    torch.set_num_threads(1)
    wanted, config = goal(4_000_000, 1.0, episodes=1000), {"opponents": opponents}
    with bray.init(tmp_path, "trial") as run:
        outcome = selfplay.SelfPlayPPO.of("tic-tac-toe", **config).train(run, goal=wanted, seed=1)
    assert outcome.reached
    assert outcome.report.against_perfect.lost == 0


def test_an_odd_number_of_evaluation_games_is_refused(tmp_path: Path) -> None:
    odd = goal(100, episodes=7)
    message = "evaluation_episodes: expected an even number, got 7"
    with bray.init(tmp_path, "x") as run, pytest.raises(ConfigError, match=message):
        selfplay.SelfPlayPPO.of("tic-tac-toe").train(run, goal=odd)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"games_per_round": 7}, "games_per_round: expected 2 or more, a multiple of 2, got 7"),
        ({"rating_games": -2}, "rating_games: expected 0 or more, a multiple of 2, got -2"),
        ({"epochs": 0}, "epochs: expected 1 or more, got 0"),
        ({"opening_moves": 4}, "opening_moves: expected 0 to 3, got 4"),
    ],
)
def test_settings_are_checked(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SelfPlayPPO.of("tic-tac-toe", **settings)
