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
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy


def main() -> None:
    """Train and print the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("algorithm", choices=("ppo", "dqn", "sac"))
    parser.add_argument("task")
    parser.add_argument("--frames", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--episodes", type=int, default=100)
    options = parser.parse_args()
    module, _, task = options.task.rpartition(":")
    if module:
        gymnasium.register_envs(importlib.import_module(module))
    kind: Any = getattr(stable_baselines3, options.algorithm.upper())
    number = 8 if options.algorithm == "ppo" else 1
    environments = make_vec_env(task, n_envs=number, seed=options.seed)
    space = environments.observation_space
    policy = "MlpPolicy"
    if isinstance(space, gymnasium.spaces.Dict):
        policy = "MultiInputPolicy"
    elif len(space.shape or ()) == 3:
        policy = "CnnPolicy"
    started = time.perf_counter()
    model = kind(policy, environments, seed=options.seed)
    model.learn(options.frames)
    seconds = time.perf_counter() - started
    evaluation = make_vec_env(task, n_envs=1, seed=options.seed + 1000)
    mean, _ = evaluate_policy(model, evaluation, options.episodes)
    print(json.dumps({"evaluation_return": float(mean), "seconds": seconds}))


if __name__ == "__main__":
    main()
