"""Stable-Baselines3's PPO on an ALE game, with RL Zoo's settings for Atari. One JSON line."""

from __future__ import annotations

import ale_py
import gymnasium
import stable_baselines3
import torch
from atari_run import Run
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import SubprocVecEnv, VecFrameStack

NUM_ENVS = 8
NUM_STEPS = 128
BATCH = 256
TOTAL_FRAMES = 10_000_000

gymnasium.register_envs(ale_py)  # in the games' processes too: they import this file


class Until(BaseCallback):
    """Counts games and updates, and ends learning when the run is over."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run_ = run
        self.is_over = False

    def _on_step(self) -> bool:
        episodes = (info.get("episode") for info in self.locals["infos"])
        self.run_.episodes(episode["r"] for episode in episodes if episode)
        return not self.is_over

    def _on_rollout_start(self) -> None:
        """Rollouts begin where updates have ended, but for the first."""
        frames = self.model.num_timesteps
        if frames:
            self.is_over = self.run_.updated(frames, frames * self.run_.epochs)


if __name__ == "__main__":
    run = Run("sb3", stable_baselines3.__version__, "PPO", epochs=4)
    games = VecFrameStack(
        make_atari_env(
            f"{run.game_class}NoFrameskip-v4",
            n_envs=NUM_ENVS,
            seed=run.seed,
            vec_env_cls=SubprocVecEnv,
        ),
        n_stack=4,
    )
    model = PPO(
        "CnnPolicy",
        games,
        n_steps=NUM_STEPS,
        batch_size=BATCH,
        n_epochs=run.epochs,
        learning_rate=lambda left: left * 2.5e-4,
        clip_range=lambda left: left * 0.1,
        ent_coef=0.01,
        vf_coef=0.5,
        seed=run.seed,
        device="cpu",
    )
    model.learn(TOTAL_FRAMES, callback=Until(run))
    run.finish(
        num_envs=NUM_ENVS,
        num_steps=NUM_STEPS,
        batch=BATCH,
        threads=torch.get_num_threads(),
        games=f"{type(games.venv).__name__}, Gymnasium {gymnasium.__version__}",
    )
    games.close()
