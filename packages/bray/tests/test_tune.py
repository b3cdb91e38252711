"""A recipe as a trainable of Ray Tune."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bray.algorithms import alphazero, ppo
from bray.goal import Goal
from bray_core.errors import ConfigError

pytestmark = pytest.mark.usefixtures("evaluated_here")

remote = pytest.importorskip(
    "bray.tune.remote", reason="needs the extra tune", exc_type=ImportError
)

GOAL = Goal(evaluate_at=1e9, max_frames=1024, evaluation_episodes=1)


def test_nonsense_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"algorithm: expected one of a2c, .*got 'pop', did"):
        remote.trainable("pop", "CartPole-v1", GOAL)
    with pytest.raises(ConfigError, match="report_every: expected 1 or more, got 0"):
        remote.trainable("ppo", "CartPole-v1", GOAL, report_every=0)


def test_a_trial_goes_on_from_a_checkpoint_with_other_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []
    kept: list[Path] = []

    def report(figures: dict[str, Any], *, checkpoint: Any) -> None:
        seen.append(figures)
        kept.append(Path(checkpoint.to_directory(tmp_path / f"kept-{len(kept)}")))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(remote.tune, "report", report)
    monkeypatch.setattr(remote.tune, "get_checkpoint", lambda: None)
    run_trial = remote.trainable("ppo", "CartPole-v1", GOAL, report_every=512)
    small = {"hidden": [8], "epochs": 1, "steps_per_replay": 512}
    run_trial({**small, "learning_rate": np.float64(0.01)})
    assert [figures["frames"] for figures in seen] == [512, 1024, 1024]
    assert "evaluation_return" in seen[-1]
    first = remote.tune.Checkpoint.from_directory(kept[0])
    monkeypatch.setattr(remote.tune, "get_checkpoint", lambda: first)
    run_trial({**small, "learning_rate": 0.001})
    assert [figures["frames"] for figures in seen[3:]] == [1024, 1024]
    assert json.loads((kept[3] / "checkpoints" / "progress.json").read_text())["frames"] == 1024
    newest = [max(folder.glob("checkpoints/*.pt")).name for folder in kept]
    replays = [1, 2, 2, 2, 2]  # the second run goes on from the first one's first
    assert newest == [f"replay-{number:09d}.pt" for number in replays]


def test_settings_that_are_not_searched_are_those_that_suit_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(remote.tune, "get_checkpoint", lambda: None)
    monkeypatch.setattr(
        alphazero.AlphaZero, "train", lambda algorithm, run, **_: seen.append(algorithm.parts)
    )
    remote.trainable("alphazero", "tic-tac-toe", GOAL)({"learning_rate": 0.5})
    assert seen == [alphazero.AlphaZero.of("tic-tac-toe", learning_rate=0.5).parts]
    assert seen[0].trainer.moves_per_round == 4
    assert seen[0].trainer != alphazero.AlphaZeroConfig(learning_rate=0.5)


def test_every_report_has_the_return_that_a_search_goes_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An episode of Pendulum is 200 steps: nothing is known before."""
    seen: list[dict[str, Any]] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(remote.tune, "report", lambda figures, checkpoint: seen.append(figures))
    monkeypatch.setattr(remote.tune, "get_checkpoint", lambda: None)
    goal = Goal(evaluate_at=1e9, max_frames=512, evaluation_episodes=1)
    settings = {"hidden": [8], "epochs": 1, "num_envs": 2, "steps_per_replay": 128}
    remote.trainable("ppo", "Pendulum-v1", goal, report_every=128)(settings)
    assert [figures["frames"] for figures in seen] == [512, 512]
    assert all("return" in figures for figures in seen)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")  # Tune's own
@pytest.mark.usefixtures("ray_cluster")
def test_tune_searches_over_a_recipe(tmp_path: Path) -> None:
    tune = remote.tune
    found = tune.Tuner(
        remote.trainable("ppo", "CartPole-v1", GOAL, report_every=512),
        param_space={"hidden": [8], "learning_rate": tune.grid_search([1e-4, 1e-2])},
        tune_config=tune.TuneConfig(metric="return", mode="max"),
        run_config=tune.RunConfig(storage_path=str(tmp_path), name="search", verbose=0),
    ).fit()
    assert not found.errors
    assert [result.metrics["frames"] for result in found] == [1024, 1024]
    assert (Path(found.get_best_result().checkpoint.path) / "checkpoints").is_dir()


def test_files_are_those_of_the_folder_where_the_search_was_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tune's workers run in folders of their own."""
    seen: list[Any] = []
    monkeypatch.chdir(tmp_path)
    (tmp_path / "searched_pole.py").write_text(
        "import gymnasium\n\n\ndef Pole():\n    return gymnasium.make('CartPole-v1')\n\n\n"
        "class Scaled(gymnasium.Wrapper):\n    pass\n"
    )
    run_trial = remote.trainable("ppo", "searched_pole.py:Pole", GOAL)
    (tmp_path / "worker").mkdir()
    monkeypatch.chdir(tmp_path / "worker")
    monkeypatch.setattr(remote.tune, "get_checkpoint", lambda: None)
    monkeypatch.setattr(
        ppo.PPO, "train", lambda algorithm, run, **_: seen.append(algorithm.parts.source)
    )
    run_trial({"wrappers": ["searched_pole.py:Scaled", "gymnasium.wrappers:NormalizeReward"]})
    assert seen[0].environment == f"{tmp_path}/searched_pole.py:Pole"
    wanted = (f"{tmp_path}/searched_pole.py:Scaled", "gymnasium.wrappers:NormalizeReward")
    assert seen[0].wrappers == wanted
    seen[0].make().close()
