"""PufferLib's PPO on an ALE game. One JSON line.

PufferLib's trainer with V-trace and segments drawn by their advantage, Adam in place of its own
Muon, and its Nature CNN; the games are ALE's C++ vector as a native environment of PufferLib's. Its
core package is used: PufferLib's own does not build without the network.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from importlib.metadata import version
from typing import Any

import gymnasium
import numpy as np
import torch
from atari_games import Games
from atari_run import Run

with contextlib.redirect_stdout(io.StringIO()):
    import pufferlib
    from pufferlib.models import Convolutional
    from pufferlib.pufferl import PuffeRL

NUM_ENVS = 32
HORIZON = 64
BATCH = 512


class Atari(pufferlib.PufferEnv):
    """`Games` as PufferLib's environment of many agents."""

    def __init__(self, games: Games, run: Run) -> None:
        self._games = games
        self._run = run
        self.num_agents = games.num_envs
        self.single_observation_space = gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)
        self.single_action_space = gymnasium.spaces.Discrete(games.num_actions)
        super().__init__()

    def reset(self, seed: int | None = None) -> tuple[np.ndarray, list[Any]]:
        """Begin all games."""
        self.observations[:] = self._games.reset()
        return self.observations, []

    def step(self, actions: np.ndarray) -> tuple[Any, ...]:
        """Step all games; rewards are clipped, a lost life is an end."""
        played = self._games.step(np.asarray(actions, np.int64))
        self.observations[:], self.rewards[:], self.terminals[:], scores = played
        self._run.episodes(scores)
        return self.observations, self.rewards, self.terminals, self.truncations, []

    def close(self) -> None:
        """Nothing to hand back."""


class Policy(Convolutional):
    """PufferLib's Nature CNN."""

    def forward_eval(self, observations: torch.Tensor, state: Any = None) -> Any:
        """Return logits and values for acting: as for training."""
        return self.forward(observations, state)


class Trainer(PuffeRL):
    """PufferLib's trainer without its dashboard."""

    def print_dashboard(self, *_: Any, **__: Any) -> None:
        """Print nothing: standard output ends with the figures."""


def config(run: Run, directory: str) -> dict[str, Any]:
    """Return the trainer's settings: PufferLib's defaults but for sizes and optimizer."""
    sizes = {
        "batch_size": NUM_ENVS * HORIZON,
        "bptt_horizon": HORIZON,
        "minibatch_size": BATCH,
        "max_minibatch_size": BATCH,
        "update_epochs": run.epochs,
        "total_timesteps": 10_000_000,
    }
    optimizer = {
        "optimizer": "adam",
        "learning_rate": 2.5e-4,
        "anneal_lr": True,
        "adam_beta1": 0.9,
        "adam_beta2": 0.999,
        "adam_eps": 1e-5,
        "max_grad_norm": 0.5,
    }
    losses = {
        "gamma": 0.99,
        "gae_lambda": 0.95,
        "clip_coef": 0.1,
        "vf_coef": 0.5,
        "vf_clip_coef": 0.1,
        "ent_coef": 0.01,
        "vtrace_rho_clip": 1.0,
        "vtrace_c_clip": 1.0,
        "prio_alpha": 0.8,
        "prio_beta0": 0.2,
    }
    machine = {
        "device": "cpu",
        "seed": run.seed,
        "torch_deterministic": False,
        "cpu_offload": False,
        "precision": "float32",
        "compile": False,
        "use_rnn": False,
        "checkpoint_interval": 1_000_000,
        "data_dir": directory,
        "env": run.game,
    }
    return sizes | optimizer | losses | machine


def main() -> None:
    """Train until the run is over."""
    run = Run("pufferlib", version("pufferlib-core"), "PPO", epochs=1)
    np.random.seed(run.seed)
    torch.manual_seed(run.seed)
    env = Atari(Games(run.game, NUM_ENVS, num_threads=2, seed=run.seed), run)
    with tempfile.TemporaryDirectory() as directory:
        policy = Policy(env, framestack=4, flat_size=3136)
        trainer = Trainer(config(run, directory), env, policy)
        over = False
        while not over:
            trainer.evaluate()
            trainer.train()
            over = run.updated(trainer.global_step, trainer.global_step * run.epochs)
        run.finish(
            num_envs=NUM_ENVS,
            num_steps=HORIZON,
            batch=BATCH,
            threads=torch.get_num_threads(),
            torch=torch.__version__,
            games="ale_py.vector_env, 2 threads",
        )
        trainer.utilization.stop()


if __name__ == "__main__":
    main()
