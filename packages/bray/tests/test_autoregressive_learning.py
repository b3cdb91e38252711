"""A game that choices by themselves cannot learn, and choices in order can."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matching_tasks import MatchingEnv

import bray
from bray.algorithms.ppo import PPO
from bray.goal import Goal

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("autoregressive", [False, True])
def test_only_choices_in_order_agree_unforeseen(
    autoregressive: bool, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))  # of the process that evaluates
    ppo = PPO.of(
        "matching_tasks:BrayTestMatching-v0",
        autoregressive=autoregressive,
        hidden=(16,),
        num_envs=8,
        segment_length=32,
        steps_per_replay=512,
        learning_rate=3e-3,
        entropy_coefficient=0.03,
        gamma=0.0,
    )
    goal = Goal(episode_return=1e6, evaluate_at=1e6, max_frames=50_000, evaluation_episodes=1)
    with bray.init(tmp_path, "trial") as run:
        ppo.train(run, goal=goal, seed=seed)
    mean = np.mean(MatchingEnv.rewards)
    assert mean > 0.65 if autoregressive else mean < 0.5
