"""Stable-Baselines3's vector, and PPO's `collect_rollouts` without its network."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from loop_environment import Trivial, options, rate, show
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import DummyVecEnv

STEPS = 64


class Nothing(BaseCallback):
    """A callback that does nothing."""

    def _on_step(self) -> bool:
        return True


def main() -> None:
    """Measure the vector alone and the loop around it."""
    given = options()
    torch.set_num_threads(1)
    vector = DummyVecEnv([Trivial] * given.num_envs)
    vector.reset()
    actions = np.zeros(given.num_envs, np.int64)
    stepping = rate(lambda: vector.step(actions), given.num_envs, given.seconds)
    model = PPO("MlpPolicy", vector, n_steps=STEPS, device="cpu")
    model.set_logger(Logger(None, []))
    model._setup_learn(10**9)
    logits, value = torch.zeros(given.num_envs, 2), torch.zeros(given.num_envs, 1)

    def forward(observation: Any, deterministic: bool = False) -> Any:
        # What remains of the policy is its draw.
        chances = torch.distributions.Categorical(logits=logits)
        action = chances.sample()
        return action, value, chances.log_prob(action)

    model.policy.forward = forward  # type: ignore[method-assign]
    callback = Nothing()
    callback.init_callback(model)
    loop = rate(
        lambda: model.collect_rollouts(vector, callback, model.rollout_buffer, STEPS),
        STEPS * given.num_envs,
        given.seconds,
    )
    show(stepping=stepping, loop=loop)


main()
