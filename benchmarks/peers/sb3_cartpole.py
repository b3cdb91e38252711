"""Stable-Baselines3's PPO on CartPole-v1 until 475, with RL Zoo's tuned settings. One JSON line.

Stop rule and evaluation are bray's own code, called with Stable-Baselines3's policy; run it through
`benchmarks/training/cartpole.py`, which says what the rule is.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

from bray.goal import Goal
from bray_actor import PolicyConfig
from bray_actor.runners.most_likely_play import play_most_likely

EVALUATION_ENVS = 20


class UntilSolved(BaseCallback):
    """Evaluates where the goal calls for it, and ends learning when the goal is reached."""

    def __init__(self, goal: Goal, seed: int) -> None:
        super().__init__()
        self.goal = goal
        self.seed = seed
        self.evaluation_return = 0.0
        self.num_evaluations = self.evaluated_at = 0

    @property
    def is_reached(self) -> bool:
        """Whether the last evaluation reached the goal."""
        return self.goal.is_reached(self.evaluation_return)

    def _on_step(self) -> bool:
        return not self.is_reached

    def _on_rollout_end(self) -> None:
        returns = [episode["r"] for episode in self.model.ep_info_buffer]
        if self.goal.calls_for_evaluation(returns, self.num_timesteps, self.evaluated_at):
            self.evaluated_at = self.num_timesteps
            self.num_evaluations += 1
            self.evaluation_return = self.evaluate()

    def evaluate(self) -> float:
        """Return the mean return of the most likely actions."""
        policy: Any = self.model.policy

        def outputs(observation: Any, batch: bool) -> dict[str, Any]:
            with torch.no_grad():
                actions = policy.get_distribution(torch.as_tensor(observation)).distribution
            return {"logits": actions.logits.numpy()}

        episodes = self.goal.evaluation_episodes
        returns = play_most_likely(
            "CartPole-v1",
            outputs,
            episodes,
            num_envs=EVALUATION_ENVS,
            seed=self.seed + 1_000_000,
            config=PolicyConfig(deterministic=True, phase="evaluation"),
        )
        return sum(returns) / episodes


def main() -> None:
    """Train and print the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--evaluate-at", type=float, required=True)
    parser.add_argument("--evaluate-window", type=int, required=True)
    parser.add_argument("--frames", type=int, default=1_000_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    started = time.perf_counter()
    model = PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=8, seed=options.seed),
        n_steps=32,
        batch_size=256,
        gae_lambda=0.8,
        gamma=0.98,
        n_epochs=20,
        ent_coef=0.0,
        learning_rate=lambda left: left * 1e-3,
        clip_range=lambda left: left * 0.2,
        seed=options.seed,
        device="cpu",
    )
    goal = Goal(
        episode_return=475.0,
        evaluate_at=options.evaluate_at,
        evaluate_window=options.evaluate_window,
        max_frames=options.frames,
    )
    solved = UntilSolved(goal, options.seed)
    while not solved.is_reached and model.num_timesteps < goal.budget:
        model.learn(min(100_000, goal.budget), callback=solved, reset_num_timesteps=False)
    train_s = time.perf_counter() - started
    print(
        json.dumps(
            {
                "seconds": train_s,
                "frames": model.num_timesteps,
                "frames_per_s": model.num_timesteps / train_s,
                "evaluation_return": solved.evaluation_return,
                "evaluations": solved.num_evaluations,
            }
        )
    )


if __name__ == "__main__":
    main()
