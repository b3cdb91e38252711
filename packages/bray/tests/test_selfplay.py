"""Self-play: the trainer's own arithmetic, a short run that learns, its resumption, the goal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bray
from bray.learner import layout
from bray.recipes import selfplay
from bray.recipes.selfplay import Config
from bray.tic_tac_toe_report import TIC_TAC_TOE as GAME
from bray_buffer import Buffer, BufferConfig
from bray_core.errors import ConfigError
from bray_core.layout import Packed

SHORT = Config(
    games_per_round=128,
    freeze_every=10,
    evaluate_every=20,
    evaluation_games=200,
    max_games=128 * 20,
    rating_games=2,
    hidden=(64,),
)


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
    return selfplay.SelfPlayTrainer(Config(**settings), 0, buffer, None, tmp_path)


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


def test_it_learns_keeps_its_league_and_goes_on(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    said: list[str] = []
    with bray.init(tmp_path, "trial") as run:
        first = selfplay.train(run, SHORT, goal=-1, seed=1, say=said.append)
    assert not first.reached
    assert (first.games, first.versions) == (2560, 2)
    assert 2 * 2560 < first.moves < 5 * 2560
    assert first.report.won_against_random > 0.6  # two that move at random: 0.44
    assert [line.split("  lost")[0] for line in said] == ["games 2,560  versions 2"]
    trial = tmp_path / "trial"
    state = json.loads((trial / "league.json").read_text())
    assert [row[-1] for row in state["payoff"]["results"]] == [2]
    assert {"win_rates.png", "ratings.png"} <= {path.name for path in trial.iterdir()}
    longer = Config(**{n: getattr(SHORT, n) for n in Config.__slots__} | {"max_games": 128 * 30})
    with bray.init(tmp_path, "trial") as run:
        second = selfplay.train(run, longer, goal=-1, seed=1)
    assert (second.games, second.versions) == (3840, 3)  # ten more rounds, one more version
    assert second.moves < first.moves
    state = json.loads((trial / "league.json").read_text())
    assert [row[-1] for row in state["payoff"]["results"]] == [2, 2, 2]


def test_the_same_seed_is_the_same_run(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    short = Config(games_per_round=64, freeze_every=2, evaluate_every=4, max_games=64 * 5,
                   evaluation_games=50, hidden=(16,), rating_games=0)  # fmt: skip
    found = []
    for trial, seed in (("a", 3), ("b", 3), ("c", 4)):
        with bray.init(tmp_path, trial) as run:
            player = selfplay.SelfPlay(run, short, seed)
            selfplay.asyncio.run(player.learn(-1, lambda _: None))
            found.append(np.concatenate([w.ravel() for w in player.model.weights()[1].values()]))
    assert (found[0] == found[1]).all()
    assert not np.allclose(found[0], found[2])


def test_the_command_prints_its_result_as_json(tmp_path: Path, capsys: Any) -> None:
    assert selfplay.main(["--project", str(tmp_path), "--trial", "x", "--max-games", "512"]) == 1
    progress, result = capsys.readouterr().out.splitlines()
    assert progress.startswith("games 512  versions 0  lost to perfect play ")
    assert json.loads(result)["report"]["lost_to_perfect"] > 0


@pytest.mark.ray
@pytest.mark.slow  # appo's and those of rollouts and workers show the same in less time
@pytest.mark.timeout(240)
def test_the_same_recipe_runs_on_ray_and_goes_on_there(tmp_path: Path, ray_cluster: None) -> None:
    short = Config(games_per_round=32, freeze_every=2, evaluate_every=4, max_games=32 * 4,
                   evaluation_games=20, hidden=(16,))  # fmt: skip
    longer = Config(games_per_round=32, freeze_every=2, evaluate_every=4, max_games=32 * 6,
                    evaluation_games=20, hidden=(16,))  # fmt: skip
    with bray.init(tmp_path, "trial", "ray") as run:
        outcome = selfplay.train(run, short, goal=-1, seed=1)
    assert (outcome.games, outcome.versions) == (128, 2)
    with bray.init(tmp_path, "trial", "ray") as run:
        outcome = selfplay.train(run, longer, goal=-1, seed=1)
    assert (outcome.games, outcome.versions) == (192, 3)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("opponents", ["pfsp", "past", "champion"])
def test_it_never_loses_to_a_perfect_player(tmp_path: Path, opponents: Any) -> None:
    torch.set_num_threads(1)
    with bray.init(tmp_path, "trial") as run:
        outcome = selfplay.train(run, Config(opponents=opponents), seed=1)
    assert outcome.reached
    assert outcome.report.lost_to_perfect == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"games_per_round": 7}, "games_per_round: expected an even number from 2, got 7"),
        ({"rating_games": -2}, "rating_games: expected an even number from 0, got -2"),
        ({"epochs": 0}, "epochs: expected 1 or more, got 0"),
        ({"opening_moves": 4}, "opening_moves: expected 0 to 3, got 4"),
    ],
)
def test_settings_are_checked(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config(**settings)
