"""PQN: ε-greedy rollouts of many environments → Q(λ) returns → a few passes → the next version.

Gallici et al. 2024, "Simplifying deep temporal difference learning": Q-learning on policy, without
a replay and without a target network. Layer normalisation keeps the values from running away, and
the many environments make batches as varied as a replay's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bray.policies.config import TrunkConfig
from bray.policies.first_weights import begin_policy
from bray.policies.flattening import split_mask
from bray.policies.layer_norms import add_layer_norms
from bray.policies.normalisation import ObservationNorm
from bray.policies.trunks import make_trunk
from bray.policies.values import allowed_actions, masked, num_choices
from bray.sources import atari
from bray.training.algorithm import Takes
from bray.training.annealing import AnnealsLearningRate, check_annealing
from bray.training.compute import ComputeConfig
from bray.training.generator import KeepsGenerator
from bray.training.minibatches import shuffled, shuffled_order
from bray.training.on_policy import OnPolicy, SegmentConfig
from bray.training.on_policy_trainer import OnPolicyTrainer
from bray_actor.spaces import ATARI
from bray_algo import schedules
from bray_algo.losses import dqn
from bray_algo.networks.initialisation import orthogonal_
from bray_algo.returns.advantages import td_lambda
from bray_core.layout import Packed
from bray_core.nested import Nested
from bray_core.settings.ranges import (
    Fraction,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    check_fields,
)
from bray_core.settings.schedule import ScheduledFraction, ScheduledPositiveFloat, value_at
from bray_core.spaces import Spaces
from bray_trainer import Trainer
from bray_trainer.frame_stacks import as_tensors
from bray_trainer.sequences import (
    Batch,
    final_value,
    in_order,
    select_steps,
    time_major,
    valid_steps,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class EpsilonFramesConfig(SegmentConfig):
    """How an agent explores by random actions, and how it records its experience."""

    epsilon: ScheduledFraction | None = None
    """ε itself, in place of its fall in a line: a number, or `{start, end, frames, shape}` by the
    frames of the trial. None: as the next two say."""
    epsilon_end: Fraction = 0.05
    """Share ε of random actions after `epsilon_frames`; before, it falls from 1 in a line. Too
    small and nothing new is tried; too large and long tasks always fail somewhere. 0.01 to 0.1."""
    epsilon_frames: PositiveInt = 50_000
    """Environment steps over which ε falls: a tenth to a half of a run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PQNConfig(ComputeConfig):
    """PQN's hyperparameters."""

    steps_per_replay: PositiveInt = 512
    """Environment steps that one policy version collects and is trained on. More of them make more
    varied batches and fewer versions. 512 to 8,192: large where there are many environments."""
    epochs: PositiveInt = 4
    """Passes over each replay, with the returns that were computed before the first. More learn
    more from it, towards returns that are older and older. 2 to 4."""
    minibatch_size: PositiveInt = 128
    """Steps of one optimiser step, at most. Small ones are noisy, large ones are few. 32 to 512."""
    learning_rate: ScheduledPositiveFloat = 5e-4
    """RAdam's step size at the start. Too large and the values run away; too small and they creep.
    1e-4 to 1e-3."""
    gamma: Fraction = 0.99
    """Discount per step. A reward t steps away counts γ^t: about 1 / (1 - γ) steps are looked
    ahead. 0.9 where all is decided soon, 0.999 where it takes thousands of steps."""
    q_lambda: Fraction = 0.65
    """λ of the returns. 0 trusts the best next action's value alone (biased while it is wrong), 1
    the rewards alone (noisy, and it judges the best actions by the random ones that were taken).
    0.5 to 0.95."""
    max_grad_norm: PositiveFloat = 10.0
    """Gradient norm above which gradients are scaled down, so that one strange batch cannot undo
    much. 0.5 to 40."""
    anneal_frames: NonNegativeInt = 0
    """Frames over which the learning rate falls linearly to a tenth, which steadies the end of a
    run; 0 keeps it constant."""
    checkpoint_every: PositiveInt = 20
    """Replays between two checkpoints: what a crash costs at most."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_annealing(self)


class PQNPolicy(nn.Module):
    """Acts ε-greedily by the values of a network with layer normalisation; ε is a weight.

    Args:
        spaces: what the policy sees and may do.
        config: the network's settings.
    """

    epsilon: Tensor
    state_size = 0

    def __init__(self, spaces: Spaces, config: TrunkConfig) -> None:
        super().__init__()
        self._space = spaces.observation
        self.normalize = ObservationNorm(spaces, config)
        num_actions = num_choices(spaces)
        self.trunk = make_trunk(spaces, config, nn.ReLU)
        size = self.trunk.size
        add_layer_norms(self.trunk)
        self.head = orthogonal_(nn.Linear(size, num_actions), 0.01)
        self.register_buffer("epsilon", torch.ones(()))

    def forward(self, observation: Nested) -> dict[str, Tensor]:
        """Map observations to `logits [B, A]`, `value [B]` (of the best action) and `q [B, A]`."""
        seen, mask = split_mask(self.normalize(observation), self._space)
        allowed = allowed_actions(mask)
        q = masked(self.head(self.trunk(seen)).float(), allowed)
        logits = masked(dqn.epsilon_greedy(q, self.epsilon), allowed)
        return {"logits": logits, "value": q.amax(-1), "q": q}


def make_policy(spaces: Spaces, config: TrunkConfig, seed: int) -> PQNPolicy:
    """Make the policy, the same for the same seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        policy = PQNPolicy(spaces, config)
    begin_policy(policy, config.begin_from)
    return policy


class PQNTrainer(KeepsGenerator, AnnealsLearningRate, OnPolicyTrainer):
    """Trains in several passes over each replay, towards Q(λ) returns computed once."""

    part: PQNConfig

    def __init__(self, *args: Any, agent: EpsilonFramesConfig, seed: int, **kwargs: Any) -> None:
        self.agent = agent
        self.generator = torch.Generator().manual_seed(seed)
        super().__init__(*args, seed=seed, **kwargs)

    def make_optimizer(self) -> Optimizer:
        """Return RAdam, which begins with small steps (Liu et al. 2020)."""
        return torch.optim.RAdam(self.module.parameters(), lr=self.config.learning_rate)

    def handle(self, replay: Packed) -> Iterator[Batch]:
        """Yield shuffled minibatches of one replay's steps, its returns computed once."""
        segments = time_major(in_order(replay), self.device)
        self.see(segments, valid_steps(segments))
        self.scale_reward(segments)
        steps = self._with_returns(segments)
        count = len(steps["return"])
        orders = [
            shuffled_order(count, self.generator, self.device) for _ in range(self.part.epochs)
        ]
        yield from shuffled(steps, orders, self.part.minibatch_size)
        self.module.epsilon.fill_(self._next_epsilon())

    def _next_epsilon(self) -> float:
        """Return the share of random actions of the version that follows this replay."""
        replays = self.replays + 1
        if self.agent.epsilon is not None:
            return value_at(self.agent.epsilon, self.frames_after(replays))
        return schedules.linear(
            self.frames_after(replays),
            start=1.0,
            end=self.agent.epsilon_end,
            num_steps=self.agent.epsilon_frames,
        )

    def _with_returns(self, segments: Batch) -> Batch:
        """Return the valid steps `[N, …]` with their `return`.

        The values of the best actions are those that the acting version recorded.
        """
        with torch.no_grad():
            final = final_value(self.module, segments)
        segments["return"] = td_lambda(
            segments["reward"],
            segments["value"],
            final,
            segments["terminated"],
            segments["length"],
            gamma=self.part.gamma,
            lambda_=self.part.q_lambda,
        )
        names = ("observation", "action", "return")
        return select_steps({name: segments[name] for name in names}, valid_steps(segments))

    def loss(self, batch: Batch, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return half the mean square of the errors of the actions taken."""
        q = self.module(as_tensors(batch["observation"]))["q"]
        return dqn.loss(q, batch["action"], batch["return"], huber=None)

    def is_repeatable(self, batch: Batch) -> bool:
        """Return that it is, unless a subclass has a loss of its own."""
        return type(self).loss is PQNTrainer.loss


class PQN(OnPolicy[PQNConfig]):
    """Acts ε-greedily in many environments, and learns each action's value from what came of it."""

    title = "PQN"
    pacing = "lockstep"
    takes: ClassVar[Takes] = Takes(gamecores=True)
    configs: ClassVar[dict[str, type[Any]]] = {
        **OnPolicy.configs,
        "model": TrunkConfig,
        "agent": EpsilonFramesConfig,
        "trainer": PQNConfig,
    }
    trainer: ClassVar[Callable[..., Trainer]] = PQNTrainer

    @classmethod
    def defaults(cls, task: str) -> Mapping[str, Any]:
        """Return settings for Atari games, and a larger network than a policy needs for others."""
        if not task.startswith(ATARI):
            return {"agent.segment_length": 32, "model.hidden": (128, 128)}
        games = {
            "agent.segment_length": 32,
            "agent.epsilon_end": 0.01,
            "agent.epsilon_frames": 1_000_000,
            "trainer.steps_per_replay": atari.shared(4096),
            "trainer.epochs": 2,
            "trainer.minibatch_size": 128,
            "trainer.learning_rate": 2.5e-4,
        }
        return {**atari.settings(), **games}

    @property
    def batch_steps(self) -> int:
        """Environment steps of a replay."""
        return self.config.steps_per_replay

    def policy(self, spaces: Spaces, seed: int) -> Any:
        """Return the policy to begin with, the same for the same seed."""
        return make_policy(spaces, self.parts.model, seed)

    def make_trainer(self, spaces: Spaces, **parts: Any) -> Any:
        """Return the trainer's factory but for its arguments `module, buffer`; pickled on Ray."""
        return partial(self.trainer, part=self.config, agent=self.parts.agent, **parts)
