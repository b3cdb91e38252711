"""Stable-Baselines3's PPO on CartPole-v1 until 475, with RL Zoo's tuned settings. One JSON line.

The stop rule is that of `benchmarks/training/cartpole.py`; run it through that script.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy


class UntilSolved(BaseCallback):
    """Stops when a greedy evaluation over 100 episodes reaches 475."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.evaluation = make_vec_env("CartPole-v1", n_envs=20, seed=seed + 1000)
        self.evaluation_return = 0.0
        self.next_try = 0

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        returns = [episode["r"] for episode in self.model.ep_info_buffer]
        if len(returns) < 100 or np.mean(returns) < 400 or self.num_timesteps < self.next_try:
            return
        self.next_try = self.num_timesteps + 2560
        self.evaluation_return = evaluate_policy(self.model, self.evaluation, 100)[0]

    def _on_training_end(self) -> None:
        self.evaluation.close()


class Stop(BaseCallback):
    """Ends learning once `UntilSolved` has seen the goal reached."""

    def __init__(self, goal: UntilSolved) -> None:
        super().__init__()
        self.goal = goal

    def _on_step(self) -> bool:
        return self.goal.evaluation_return < 475


def main() -> None:
    """Train and print the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    seed = parser.parse_args().seed
    torch.set_num_threads(1)
    started = time.perf_counter()
    total = 100_000
    model = PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=8, seed=seed),
        n_steps=32,
        batch_size=256,
        gae_lambda=0.8,
        gamma=0.98,
        n_epochs=20,
        ent_coef=0.0,
        learning_rate=lambda left: left * 1e-3,
        clip_range=lambda left: left * 0.2,
        seed=seed,
        device="cpu",
    )
    goal = UntilSolved(seed)
    while goal.evaluation_return < 475 and model.num_timesteps < 1_000_000:
        model.learn(total, callback=[goal, Stop(goal)], reset_num_timesteps=False)
    train_s = time.perf_counter() - started
    print(
        json.dumps(
            {
                "seconds": train_s,
                "frames": model.num_timesteps,
                "frames_per_s": model.num_timesteps / train_s,
                "evaluation_return": float(goal.evaluation_return),
            }
        )
    )


if __name__ == "__main__":
    main()
