"""Tianshou 2's PPO on an ALE game, with its example's settings for Atari. One JSON line.

The games are EnvPool's, as `make_atari_env` prefers them, of 10 environments.
"""

from __future__ import annotations

from typing import Any

import envpool
import numpy as np
import tianshou
import torch
from atari_run import Run
from tianshou.algorithm import PPO
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env.atari.atari_network import DQNet, ScaledObsInputActionReprNet, layer_init
from tianshou.env.atari.atari_wrapper import AtariEnvFactory
from tianshou.highlevel.env import EnvMode
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
from tianshou.utils.torch_utils import policy_within_training_step

NUM_ENVS = 10
STEPS = 1000  # of all environments together
BATCH = 256


class Scores:
    """Keeps the true scores of the games as Tianshou's hook after each step."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._scores = np.zeros(NUM_ENVS)

    def __call__(self, _: Any, step: Any) -> None:
        """Add one step of all environments; a lost life does not end a game."""
        self._scores += step.info["reward"]
        over = step.info["terminated"].astype(bool) | step.truncated
        self._run.episodes(self._scores[over])
        self._scores[over] = 0


def make_algorithm(games: Any, epochs: int) -> PPO:
    """Return PPO over one Nature CNN with a policy and a value on top."""
    actions = games.action_space
    trunk = DQNet(
        4, 84, 84, actions.n, features_only=True, output_dim_added_layer=512, layer_init=layer_init
    )
    net = ScaledObsInputActionReprNet(trunk)
    actor = DiscreteActor(preprocess_net=net, action_shape=actions.n, softmax_output=False)
    return PPO(
        policy=DiscreteActorPolicy(actor=actor, action_space=actions),
        critic=DiscreteCritic(preprocess_net=net),
        optim=AdamOptimizerFactory(lr=2.5e-4, eps=1e-5),
        gamma=0.99,
        gae_lambda=0.95,
        max_grad_norm=0.5,
        vf_coef=0.25,
        ent_coef=0.01,
        eps_clip=0.1,
        value_clip=True,
    )


run = Run("tianshou", tianshou.__version__, "PPO", epochs=4)
np.random.seed(run.seed)
torch.manual_seed(run.seed)
factory = AtariEnvFactory(f"{run.game_class}NoFrameskip-v4", frame_stack=4)
games = factory.create_venv(NUM_ENVS, EnvMode.TRAINING, seed=run.seed)
algorithm = make_algorithm(games, run.epochs)
buffer = VectorReplayBuffer(
    NUM_ENVS * STEPS, NUM_ENVS, ignore_obs_next=True, save_only_last_obs=True, stack_num=4
)
collector = Collector(
    algorithm, games, buffer, on_step_hook=Scores(run), raise_on_nan_in_buffer=False
)
collector.reset()
frames = trained = 0
over = False
with policy_within_training_step(algorithm.policy):
    while not over:
        frames += collector.collect(n_step=STEPS).n_collected_steps
        algorithm.update(buffer, batch_size=BATCH, repeat=run.epochs)
        trained += run.epochs * len(buffer)
        collector.reset_buffer(keep_statistics=True)
        over = run.updated(frames, trained)
run.finish(
    num_envs=NUM_ENVS,
    num_steps=STEPS // NUM_ENVS,
    batch=BATCH,
    threads=torch.get_num_threads(),
    games=f"EnvPool {envpool.__version__}",
)
