"""Stable-Baselines3 on any Gymnasium task with its own default settings. One JSON line.

Run through `benchmarks/training/tasks.py`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import time
from typing import Any

import gymnasium
import stable_baselines3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

EVERY = 1000


class Curve(BaseCallback):
    """The mean return of the last 100 training episodes, every 1,000 frames or more."""

    def __init__(self) -> None:
        super().__init__()
        self.points: list[tuple[int, float]] = []

    def _on_step(self) -> bool:
        before = self.points[-1][0] if self.points else 0
        episodes = self.model.ep_info_buffer
        if episodes and self.num_timesteps >= before + EVERY:
            mean = sum(episode["r"] for episode in episodes) / len(episodes)
            self.points.append((self.num_timesteps, float(mean)))
        return True


def main() -> None:
    """Train and print the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("algorithm", choices=("ppo", "dqn", "sac"))
    parser.add_argument("task")
    parser.add_argument("--frames", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--normalize", action="store_true", help="observations and rewards")
    options = parser.parse_args()
    module, _, task = options.task.rpartition(":")
    if module:
        gymnasium.register_envs(importlib.import_module(module))
    kind: Any = getattr(stable_baselines3, options.algorithm.upper())
    number = 8 if options.algorithm == "ppo" else 1
    environments: VecEnv = make_vec_env(task, n_envs=number, seed=options.seed)
    if options.normalize:
        environments = VecNormalize(environments)
    space = environments.observation_space
    policy = "MlpPolicy"
    if isinstance(space, gymnasium.spaces.Dict):
        policy = "MultiInputPolicy"
    elif len(space.shape or ()) == 3:
        policy = "CnnPolicy"
    started = time.perf_counter()
    model = kind(policy, environments, seed=options.seed)
    curve = Curve()
    model.learn(options.frames, callback=curve)
    seconds = time.perf_counter() - started
    evaluation: VecEnv = make_vec_env(task, n_envs=1, seed=options.seed + 1000)
    if isinstance(environments, VecNormalize):
        evaluation = VecNormalize(evaluation, training=False, norm_reward=False)
        evaluation.obs_rms = environments.obs_rms
    mean, _ = evaluate_policy(model, evaluation, options.episodes)
    found = {"evaluation_return": float(mean), "seconds": seconds, "curve": curve.points}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
