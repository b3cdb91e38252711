"""Retention, by a run and after it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import bray
from bray.algorithms import ppo
from bray.best import BestVersion
from bray.games.league_file import write_league
from bray.goal import Goal
from bray.retention import RetentionPolicy, prune, surplus
from bray.training.deploy import export_best
from bray_core.errors import CodecError, ConfigError
from bray_core.trials.trial import Trial, clone
from bray_model import Retention
from bray_model.versions.version_store import VersionStore
from bray_trainer.checkpoints import checkpoint

pytestmark = pytest.mark.usefixtures("evaluated_here")

EXAMPLE = np.zeros((1, 4), np.float32)


def files(folder: Path) -> list[str]:
    return sorted(
        path.name for path in folder.iterdir() if path.name not in ("index.json", "progress.json")
    )


def test_a_run_keeps_what_it_is_told(tmp_path: Path) -> None:
    keep = RetentionPolicy(checkpoints=1, versions=2)
    config = {
        "hidden": (4,), "steps_per_replay": 32, "num_envs": 4, "segment_length": 8, "epochs": 1,
        "minibatch_size": 16, "checkpoint_every": 1,
    }  # fmt: skip
    goal = Goal(episode_return=1e9, evaluate_at=1e9, max_frames=128, evaluation_episodes=1)
    with bray.init(tmp_path, "trial", keep=keep) as run:
        outcome = ppo.PPO.of("CartPole-v1", **config).train(run, goal=goal)
        assert len(files(run.experiment.checkpoints)) == 1
    trial = tmp_path / "trial"
    best = BestVersion.read(trial)
    assert best is not None
    assert (best.version, best.frames) == (outcome.version, 128)
    assert best.evaluation_return == outcome.evaluation_return
    copy = clone(Trial(trial), "copy", checkpoint=True).path
    state = checkpoint.load_newest(copy / "checkpoints")
    assert state is not None
    assert state["replays"] == 128 // 32
    store = VersionStore(copy / "models" / "policy" / "versions", Retention())
    assert outcome.version in store.versions()
    assert store.load(outcome.version)


def test_a_model_of_a_run_keeps_so_many_versions_and_pinned_ones(tmp_path: Path) -> None:
    with bray.init(tmp_path, "trial", keep=RetentionPolicy(versions=2)) as run:
        model = run.model("policy", torch.nn.Linear(4, 2), EXAMPLE)
        for version in range(1, 6):
            model.publish(model.weights()[1])
            model.checkpoint()
            if version == 1:
                model.pin(1)
    folder = tmp_path / "trial" / "models" / "policy" / "versions"
    assert files(folder) == ["1.safetensors", "4.safetensors", "5.safetensors"]


def test_without_a_retention_a_run_deletes_nothing(tmp_path: Path) -> None:
    episodes = tmp_path / "trial" / "episodes"
    episodes.mkdir(parents=True)
    for number in range(1001):
        (episodes / f"{number:05d}.episode").touch()
    with bray.init(tmp_path, "trial"):
        pass
    assert len(files(episodes)) == 1001
    with bray.init(tmp_path, "trial", keep=RetentionPolicy(episodes=1000)):
        pass
    assert len(files(episodes)) == 1000
    assert not (episodes / "00000.episode").exists()


def test_pruning_drops_the_oldest(tmp_path: Path) -> None:
    with bray.init(tmp_path, "trial") as run:
        model = run.model("policy", torch.nn.Linear(4, 2), EXAMPLE)
        for _ in range(4):
            model.publish(model.weights()[1])
            model.checkpoint()
    trial = tmp_path / "trial"
    for number in range(1, 4):
        (trial / "checkpoints" / f"replay-{number:09d}.pt").touch()
        (trial / "checkpoints" / f"replay-{number:09d}-abc").mkdir()
        (trial / "episodes" / f"2026010{number}T000000-1-1.episode").touch()
    (trial / "checkpoints" / "mine.pt").touch()
    keep = RetentionPolicy(checkpoints=2, versions=1, episodes=1)
    named = {path.name for path in surplus(trial, keep)}
    assert named == {
        "replay-000000001.pt", "replay-000000001-abc", "1.safetensors", "2.safetensors",
        "3.safetensors", "20260101T000000-1-1.episode", "20260102T000000-1-1.episode",
    }  # fmt: skip
    prune(trial, keep)
    assert surplus(trial, keep) == []
    assert len(files(trial / "checkpoints")) == 5
    assert files(trial / "episodes") == ["20260103T000000-1-1.episode"]
    with bray.init(tmp_path, "trial") as run:
        assert run.model("policy", torch.nn.Linear(4, 2), EXAMPLE).version == 4


class Pins:
    def __init__(self) -> None:
        self.pinned: set[int] = set()

    def pin(self, version: int, pinned: bool = True) -> None:
        (self.pinned.add if pinned else self.pinned.remove)(version)


def test_the_best_version_stays_pinned(tmp_path: Path) -> None:
    model = Pins()
    first = BestVersion(version=3, evaluation_return=10.0, frames=5)
    assert first.offer(tmp_path, model)
    assert not BestVersion(version=4, evaluation_return=10.0, frames=6).offer(tmp_path, model)
    assert (BestVersion.read(tmp_path), model.pinned) == (first, {3})
    better = BestVersion(version=5, evaluation_return=11.0, frames=7)
    assert better.offer(tmp_path, model)
    assert (BestVersion.read(tmp_path), model.pinned) == (better, {5})
    again = BestVersion(version=5, evaluation_return=12.0, frames=8)
    assert again.offer(tmp_path, model)
    assert model.pinned == {5}


def test_a_best_version_that_a_league_has_frozen_stays_pinned(tmp_path: Path) -> None:
    model = Pins()
    assert BestVersion(version=3, evaluation_return=10.0, frames=5).offer(tmp_path, model)
    write_league(tmp_path / "league.json", {"versions": {"main:v3": 3, "main:v4": 4}})
    assert BestVersion(version=5, evaluation_return=11.0, frames=7).offer(tmp_path, model)
    assert model.pinned == {3, 5}
    assert BestVersion(version=6, evaluation_return=12.0, frames=8).offer(tmp_path, model)
    assert model.pinned == {3, 6}


def test_a_best_version_is_exported_under_the_name_of_its_model(tmp_path: Path) -> None:
    with bray.init(tmp_path, "trial") as run:
        model = run.model("hunter", torch.nn.Linear(4, 2), EXAMPLE)
        weights = model.weights()[1]
        model.publish(weights)
        assert model.checkpoint() is not None
        assert BestVersion(version=1, evaluation_return=1.0, frames=5).offer(
            tmp_path / "trial", model
        )
        model.publish(weights)  # a newer one, which is worse
        report = export_best(run, ppo.PPO, "hunter")
    assert report is not None
    assert report.version == 1
    assert json.loads((report.path / "manifest.json").read_text())["name"] == "hunter"


def test_a_best_version_that_was_deleted_counts_no_more(tmp_path: Path) -> None:
    with bray.init(tmp_path, "trial") as run:
        model = run.model("policy", torch.nn.Linear(4, 2), EXAMPLE)
        path = run.experiment.path
        assert BestVersion(version=7, evaluation_return=9.0, frames=1).offer(tmp_path, Pins())
        (tmp_path / "best.json").rename(path / "best.json")  # as after rm -r TRIAL/models
        now = BestVersion(version=int(model.checkpoint().stem), evaluation_return=3.0, frames=2)
        assert now.offer(path, model)
        assert BestVersion.read(path) == now


@pytest.mark.parametrize("text", ["{", "[]", json.dumps({"version": 3})])
def test_a_broken_best_is_named(tmp_path: Path, text: str) -> None:
    assert BestVersion.read(tmp_path) is None
    (tmp_path / "best.json").write_text(text)
    with pytest.raises(CodecError, match=r"best\.json: not a best version"):
        BestVersion.read(tmp_path)


@pytest.mark.parametrize("name", ["checkpoints", "versions", "episodes"])
def test_keeping_none_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}: expected 1 or more, got 0"):
        RetentionPolicy(**{name: 0})
