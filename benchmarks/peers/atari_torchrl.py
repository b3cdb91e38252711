"""TorchRL's PPO on an ALE game, with its own Atari example's settings. One JSON line.

Batches of 4,096 frames of 8 environments, minibatches of 1,024, 3 epochs. The games are ALE's C++
vector in an environment of TorchRL's, instead of its example's Python transforms: quicker.
"""

from __future__ import annotations

from typing import Any

import torch
import torchrl
from atari_games import Games
from atari_run import Run
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torch.distributions import Categorical
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data import tensor_specs as specs
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
from torchrl.envs import EnvBase
from torchrl.modules import MLP, ActorValueOperator, ConvNet, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

NUM_ENVS = 8
FRAMES_PER_BATCH = 4096
BATCH = 1024


class Atari(EnvBase):
    """`Games` as TorchRL's environment, which begins ended games anew by itself."""

    def __init__(self, games: Games, run: Run) -> None:
        super().__init__(batch_size=[games.num_envs])
        self._games = games
        self._run = run
        shape = self.batch_size
        self.observation_spec = specs.Composite(
            observation=specs.Unbounded((*shape, 4, 84, 84), dtype=torch.uint8), shape=shape
        )
        self.action_spec = specs.Categorical(games.num_actions, shape)
        self.reward_spec = specs.Unbounded((*shape, 1))

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDict:
        observation = torch.from_numpy(self._games.reset())
        return TensorDict({"observation": observation}, self.batch_size)

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        played = self._games.step(tensordict["action"].numpy())
        self._run.episodes(played[3])
        observation, reward, end = map(torch.from_numpy, played[:3])
        ended = end.unsqueeze(-1)
        return TensorDict(
            {
                "observation": observation,
                "reward": reward.unsqueeze(-1),
                "done": ended,
                "terminated": ended,
            },
            self.batch_size,
        )

    def step_and_maybe_reset(
        self, tensordict: TensorDictBase
    ) -> tuple[TensorDictBase, TensorDictBase]:
        """Step, and go on from what came: ended games have begun anew already."""
        tensordict = self.step(tensordict)
        following = self._step_mdp(tensordict)
        for key in self.done_keys:
            following.set(key, torch.zeros_like(following.get(key)))
        return tensordict, following

    def _set_seed(self, seed: int | None) -> None:
        """The games have theirs."""


class Scale(nn.Module):
    """Bytes to numbers from 0 to 1."""

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Return float32 of uint8."""
        return observation / 255.0


def make_model(num_actions: int) -> ActorValueOperator:
    """Return the Nature CNN with a policy and a value on top."""
    trunk = nn.Sequential(
        Scale(),
        ConvNet(
            in_features=4,
            activation_class=nn.ReLU,
            num_cells=[32, 64, 64],
            kernel_sizes=[8, 4, 3],
            strides=[4, 2, 1],
        ),
        MLP(in_features=3136, out_features=512, num_cells=[], activate_last_layer=True,
            activation_class=nn.ReLU),
    )  # fmt: skip
    logits = nn.Linear(512, num_actions)
    return ActorValueOperator(
        TensorDictModule(trunk, ["observation"], ["hidden"]),
        ProbabilisticActor(
            TensorDictModule(logits, ["hidden"], ["logits"]),
            in_keys=["logits"],
            distribution_class=Categorical,
            return_log_prob=True,
        ),
        ValueOperator(nn.Linear(512, 1), in_keys=["hidden"]),
    )


run = Run("torchrl", torchrl.__version__, "PPO", epochs=3)
torch.manual_seed(run.seed)
env = Atari(Games(run.game, NUM_ENVS, num_threads=2, seed=run.seed), run)
model = make_model(env.action_spec.n)
actor: TensorDictSequential = model.get_policy_operator()
critic: TensorDictSequential = model.get_value_operator()
advantages = GAE(gamma=0.99, lmbda=0.95, value_network=critic, average_gae=True)
losses = ClipPPOLoss(
    actor,
    critic,
    clip_epsilon=0.1,
    entropy_coeff=0.01,
    critic_coeff=1.0,
    loss_critic_type="l2",
    normalize_advantage=True,
)
optimizer = torch.optim.Adam(losses.parameters(), lr=2.5e-4, eps=1e-6)
buffer = TensorDictReplayBuffer(
    storage=LazyTensorStorage(FRAMES_PER_BATCH),
    sampler=SamplerWithoutReplacement(),
    batch_size=BATCH,
)
collector = Collector(env, actor, frames_per_batch=FRAMES_PER_BATCH, total_frames=-1)
frames = trained = 0
for rollout in collector:
    frames += rollout.numel()
    with torch.no_grad():
        advantages(rollout)
    buffer.empty()
    buffer.extend(rollout.reshape(-1))
    for _ in range(run.epochs):
        for batch in buffer:
            loss = losses(batch)
            optimizer.zero_grad()
            sum(loss[name] for name in loss.keys() if name.startswith("loss_")).backward()  # noqa: SIM118
            nn.utils.clip_grad_norm_(losses.parameters(), 0.5)
            optimizer.step()
            trained += len(batch)
    if run.updated(frames, trained):
        break
run.finish(
    num_envs=NUM_ENVS,
    num_steps=FRAMES_PER_BATCH // NUM_ENVS,
    batch=BATCH,
    threads=torch.get_num_threads(),
    games="ale_py.vector_env, 2 threads",
)
collector.shutdown()
