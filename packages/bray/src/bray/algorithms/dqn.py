"""DQN: ε-greedy rollouts → replay → double Q-learning → the next policy version.

Mnih et al. 2015, "Human-level control through deep reinforcement learning"; van Hasselt et al.
2016, "Deep reinforcement learning with double Q-learning"; n-step and prioritised by setting.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bray.policies.config import TrunkConfig
from bray.policies.flattening import split_mask
from bray.policies.normalisation import ObservationNorm
from bray.policies.trunks import make_network
from bray.training.algorithm import Parts
from bray.training.normalisation import NormalisingTrainer
from bray.training.off_policy import NStepConfig, OffPolicy, OffPolicyConfig, ReplaySettings
from bray.training.target import KeepsTarget
from bray_algo import schedules
from bray_algo.distributions import categorical
from bray_algo.losses import dqn
from bray_algo.networks.polyak import polyak_
from bray_core.action_vector import ActionVector
from bray_core.errors import ConfigError
from bray_core.layout import Packed
from bray_core.nested import Nested
from bray_core.protocols import ModelProtocol
from bray_core.settings.ranges import Fraction, PositiveFloat, PositiveInt
from bray_core.spaces import Spaces
from bray_trainer import TrainerConfig, to_torch


@dataclass(frozen=True, kw_only=True, slots=True)
class EpsilonGreedyConfig(NStepConfig):
    """How an agent explores by random actions, and how its steps become transitions."""

    n_step: PositiveInt = 3
    """Rewards summed before the bootstrap. More of them carry a reward back faster, and judge old
    actions by what an older policy did after them. 1 to 5."""
    epsilon_end: Fraction = 0.05
    """Share ε of random actions after `epsilon_steps`; before, it falls from 1 in a line. Too small
    and nothing new is tried; too large and long tasks always fail somewhere. 0.01 to 0.1."""
    epsilon_steps: PositiveInt = 5_000
    """Optimiser steps over which ε falls: about a tenth of a run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrioritizedReplaySettings(ReplaySettings):
    """What a replay holds, and how it is drawn from."""

    prioritized: bool = False
    """Whether transitions are drawn by their error, so that surprising ones come more often."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DQNConfig(OffPolicyConfig):
    """DQN's hyperparameters."""

    batch_size: PositiveInt = 128
    """Transitions of one step of the optimiser. 32 to 1,024."""
    learning_rate: PositiveFloat = 6.3e-4
    """Adam's step size. Too large and the values run away; too small and they creep. 1e-4 to
    3e-3."""
    target_every: PositiveInt = 250
    """Optimiser steps between two copies to the target network. Too few and the target chases the
    network; too many and a reward takes long to travel back. 100 to 10,000."""


class DQNPolicy(nn.Module):
    """Acts ε-greedily by its network's action values: ε lies in the weights, so it is published."""

    epsilon: Tensor

    def __init__(self, spaces: Spaces, config: TrunkConfig) -> None:
        super().__init__()
        self._space = spaces.observation
        self.normalize = ObservationNorm(spaces, config)
        num_actions = num_choices(spaces)
        # Values begin near 0: a bootstrap from large random ones does not recover (CartPole).
        self.q = make_network(spaces, config, num_actions, nn.ReLU, output_gain=0.01)
        self.register_buffer("epsilon", torch.ones(()))

    def values(self, observation: Nested) -> Tensor:
        """Return the action values `[B, A]`; those of actions that are not allowed are least."""
        return self._values(observation)[0]

    def _values(self, observation: Nested) -> tuple[Tensor, Tensor | None]:
        """Return the action values, and which actions are allowed if there is a mask."""
        seen, mask = split_mask(self.normalize(observation), self._space)
        values: Tensor = self.q(seen)
        if mask is None:
            return values, None
        allowed = mask.bool()  # nothing is allowed in what follows a last step: then all is
        allowed = allowed | ~allowed.any(-1, keepdim=True)
        return categorical.mask(values, allowed), allowed

    def forward(self, observation: Nested) -> dict[str, Tensor]:
        """Map observations to `logits [B, A]` and `value [B]`."""
        q, allowed = self._values(observation)
        logits = dqn.epsilon_greedy(q, self.epsilon)
        if allowed is not None:
            logits = categorical.mask(logits, allowed)
        return {"logits": logits, "value": q.amax(-1)}


def num_choices(spaces: Spaces) -> int:
    """Return the number A of actions of which one is chosen.

    Raises:
        ConfigError: an action is another one.
    """
    actions = ActionVector(spaces.action, spaces.origin)
    if not actions.is_one:
        raise ConfigError(
            f"environment: {spaces.origin}: expected actions that are one choice (Discrete), got "
            f"{len(actions.sizes)} choices and {actions.num_reals} reals: train PPO, or SAC for "
            "reals alone"
        )
    return actions.sizes[0]


def make_policy(spaces: Spaces, config: TrunkConfig, seed: int) -> DQNPolicy:
    """Make the policy, the same for the same seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return DQNPolicy(spaces, config)


class DQNTrainer(KeepsTarget, NormalisingTrainer):
    """One replay is one batch of transitions is one step."""

    def __init__(
        self,
        spaces: Spaces,
        parts: Parts,
        seed: int,
        model: ModelProtocol,
        buffer: Any,
        directory: Path | None = None,
    ) -> None:
        config: DQNConfig = parts.trainer
        self.settings, self.parts = config, parts
        self.replay = buffer
        module = make_policy(spaces, parts.model, seed)
        self.target = copy.deepcopy(module).requires_grad_(False)
        self.target.normalize = module.normalize  # both read the same numbers
        trainer = TrainerConfig(
            learning_rate=config.learning_rate,
            max_grad_norm=10.0,
            prefetch=0,
            publish_every=config.replays_per_collect,
            checkpoint_every=10_000,
            seed=seed,
        )
        super().__init__(
            module,
            buffer,
            model=model,
            config=trainer,
            directory=directory,
            normalize_reward=config.normalize_reward,
        )

    def handle(self, replay: Packed) -> Iterator[dict[str, Tensor]]:
        """Yield the batch; before it, what depends on the number of steps."""
        if self.steps % self.settings.target_every == 0:
            polyak_(self.target, self.module, tau=1.0)
        self.module.epsilon.fill_(
            schedules.linear(
                self.steps,
                start=1.0,
                end=self.parts.agent.epsilon_end,
                num_steps=self.parts.agent.epsilon_steps,
            )
        )
        batch = to_torch(replay, self.device)
        self.see(batch["observation"])
        self.scale_reward(batch)
        yield batch

    def loss(self, batch: dict[str, Tensor], step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the Huber loss towards double Q-learning's target."""
        q = self.module.values(batch["observation"])
        with torch.no_grad():
            following = batch["next_observation"]
            target = dqn.target(
                self.target.values(following),
                batch["reward"],
                batch["discount"],
                next_online_q=self.module.values(following),
            )
        if self.parts.buffer.prioritized:
            error = dqn.td_error(q.detach(), batch["action"], target).abs()
            self.replay.update_priorities(batch["key"].numpy(), error.numpy())
        return dqn.loss(q, batch["action"], target, weight=batch.get("weight"))


class DQN(OffPolicy[DQNConfig]):
    """Acts ε-greedily, keeps what it saw, and learns the value of each action."""

    title = "DQN"
    configs: ClassVar[dict[str, type[Any]]] = {
        **OffPolicy.configs,
        "agent": EpsilonGreedyConfig,
        "buffer": PrioritizedReplaySettings,
        "trainer": DQNConfig,
    }
    trainer = DQNTrainer

    @classmethod
    def defaults(cls, task: str) -> Mapping[str, Any]:
        """Return a larger network than a policy needs: values are harder to fit."""
        return {"model.hidden": (256, 256), "source.num_envs": 8}

    @property
    def is_prioritized(self) -> bool:  # type: ignore[override]
        """Whether transitions are drawn by their error."""
        return bool(self.parts.buffer.prioritized)

    def policy(self, spaces: Spaces, seed: int) -> DQNPolicy:
        """Return the policy, the same for the same seed."""
        return make_policy(spaces, self.parts.model, seed)
