"""Offline algorithms do better than the clone of the same data."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bray
from bray.algorithms import bc, cql, iql, td3_bc
from bray.goal import Goal
from bray.sources import demonstrations
from bray_core.protocols import Answer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
SEEDS = [1, 2, 3]


class HalfTrained:
    """Balances a pole, but pushes to the left too often: most of its pushes are wrong ones."""

    version = 0

    async def infer(self, observation: Any, batch: bool = False) -> Answer:
        place, speed, angle, turn = map(float, observation)
        right = 0.35 if angle + 0.5 * turn + 0.05 * place + 0.1 * speed > 0 else 1e-6
        logits = np.log(np.float32([1 - right, right]))
        return Answer({"logits": logits, "value": np.float32(0)}, 0)


class Clumsy:
    """Swings a pendulum up by its energy and holds it, but mostly pushes at random."""

    version = 0

    def __init__(self) -> None:
        self._random = np.random.default_rng(1)

    async def infer(self, observation: Any, batch: bool = False) -> Answer:
        cos, sin, speed = map(float, observation)
        push = -8 * math.atan2(sin, cos) - 2 * speed
        if cos < 0.9 or abs(speed) > 3:
            push = 2 * np.sign(speed or 1) * np.sign(5 - 5 * cos - speed**2 / 6)
        if self._random.random() < 0.7:
            push = self._random.uniform(-2, 2)
        mean = np.float32([np.clip(push, -2, 2)])
        return Answer({"mean": mean, "log_std": np.float32([-8]), "value": np.float32(0)}, 0)


@pytest.fixture(scope="module")
def balanced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Episodes of CartPole, of about 15 steps each."""
    folder = tmp_path_factory.mktemp("balanced")
    returns = demonstrations.record(folder, "CartPole-v1", HalfTrained(), episodes=300, seed=1)
    assert np.mean(returns) < 30
    return folder


@pytest.fixture(scope="module")
def swung(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Episodes of Pendulum."""
    folder = tmp_path_factory.mktemp("swung")
    demonstrations.record(folder, "Pendulum-v1", Clumsy(), episodes=100, seed=1)
    return folder


def mean_of(algorithm: Any, task: str, project: Path, seed: int, **settings: Any) -> float:
    """Return the mean of a run's evaluations but the first."""
    found: list[float] = []

    def note(figures: Any, save: Any) -> None:
        if "evaluation_return" in figures:
            found.append(figures["evaluation_return"])

    goal = Goal(episode_return=math.inf, max_frames=1, evaluation_episodes=20)
    with bray.init(project, f"{algorithm.__name__}-{seed}") as run:
        run.listen(note)
        algorithm.of(task, hidden=(64, 64), batch_size=128, **settings).train(
            run, goal=goal, seed=seed
        )
    return float(np.mean(found[1:]))


@pytest.mark.parametrize("seed", SEEDS)
def test_choices_are_better_than_those_recorded(balanced: Path, tmp_path: Path, seed: int) -> None:
    """The clone pushes to the left as the player mostly did: the pole falls at once."""
    shared: dict[str, Any] = {
        "demonstrations": str(balanced),
        "learning_rate": 1e-3,
        "max_steps": 2_000,
        "evaluate_every": 1_000,
        "gamma": 0.95,
    }
    assert mean_of(bc.BC, "CartPole-v1", tmp_path, seed, **shared) < 15
    for algorithm, settings in (
        (iql.IQL, {"tau": 0.01, "expectile": 0.8}),
        (cql.CQL, {"tau": 0.01, "conservatism": 0.5}),
    ):
        found = mean_of(algorithm, "CartPole-v1", tmp_path, seed, **shared, **settings)
        assert found > 40, algorithm


@pytest.mark.parametrize("seed", SEEDS)
def test_reals_are_better_than_those_recorded(swung: Path, tmp_path: Path, seed: int) -> None:
    shared: dict[str, Any] = {
        "demonstrations": str(swung),
        "max_steps": 3_000,
        "evaluate_every": 1_000,
        "gamma": 0.95,
    }
    cloned = mean_of(bc.BC, "Pendulum-v1", tmp_path, seed, learning_rate=1e-3, **shared)
    near: dict[str, Any] = {"learning_rate": 1e-3, "tau": 0.01, "alpha": 5.0}
    found = mean_of(td3_bc.TD3BC, "Pendulum-v1", tmp_path, seed, **shared, **near)
    assert found > cloned + 100
