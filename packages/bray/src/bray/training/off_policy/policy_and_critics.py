"""What SAC, TQC, CrossQ and TD3 share: a policy, the critics that judge it, their targets.

An algorithm of this family is a config, a trainer that makes its policy and its losses, and a
subclass of `PolicyAndCritics` that names both.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from bray.policies.continuous import ActionBounds, Critics
from bray.policies.first_weights import begin_networks
from bray.training.algorithm import Parts, Takes
from bray.training.normalisation import NormalisingTrainer
from bray.training.off_policy.replay_learning import NStepConfig, OffPolicy, OffPolicyConfig
from bray.training.off_policy.target import KeepsTarget, make_target
from bray_algo.networks.polyak import TargetUpdate
from bray_core.action_vector import ActionVector
from bray_core.layout import Packed
from bray_core.protocols import ModelProtocol
from bray_core.settings.ranges import PositiveInt, Range
from bray_core.settings.schedule import ScheduledPositiveFloat, value_at
from bray_core.spaces import Spaces
from bray_trainer import TrainerConfig, to_torch
from bray_trainer.flat_adam import can_join, join
from bray_trainer.sequences import Batch


@dataclass(frozen=True, kw_only=True, slots=True)
class NoiseConfig(NStepConfig):
    """How an agent tries actions of real numbers, and how its steps become transitions."""

    noise: Literal["pink", "white"] = "pink"
    """How the random part of an action follows that of the steps before. `white`: not at all, so
    that pushes in turns cancel out, and what takes many steps in one direction is never tried.
    `pink`: over short times and long ones alike (Eberhard et al. 2023, "Pink noise is all you
    need"). Draws of a single choice never follow each other."""

    @property
    def is_pink(self) -> bool:
        """Whether the random part follows that of the steps before."""
        return self.noise == "pink"


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyAndCriticsConfig(OffPolicyConfig):
    """What every algorithm of a policy and critics can be told; each adds its own."""

    replays_per_collect: PositiveInt = 64
    """Optimiser steps after `steps_per_collect`: by default one for each frame."""
    learning_rate: ScheduledPositiveFloat = 1e-3
    """Adam's step size, for all that is trained: policy, critics and the algorithm's own. Too large
    and the values run away; too small and they creep. 1e-4 to 3e-3."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FollowingTargetsConfig(PolicyAndCriticsConfig):
    """What an algorithm can be told whose target networks follow slowly."""

    tau: Annotated[float, Range(above=0, maximum=1)] = 0.005
    """How far the target networks follow at each step, 0 to 1. Too fast and the target chases the
    network; too slow and learning waits for it. 0.001 to 0.02."""


class PolicyAndCriticsTrainer(KeepsTarget, NormalisingTrainer):
    """One replay is one batch of transitions is one step; each network has an Adam of its own."""

    def __init__(
        self,
        spaces: Spaces,
        parts: Parts,
        seed: int,
        model: ModelProtocol | None,
        buffer: Any,
        directory: Path | None = None,
    ) -> None:
        self.settings: Any = parts.trainer
        modules = self.networks(spaces, parts, seed)
        self.target = make_target(self.followed(modules))
        config = TrainerConfig(
            prefetch=0,
            publish_every=self.settings.replays_per_collect,
            checkpoint_every=10_000,
            device=self.settings.device,
            seed=seed,
        )
        super().__init__(
            modules,
            buffer,
            model=None if model is None else {"policy": model},
            config=config,
            directory=directory,
            normalize_reward=self.settings.normalize_reward,
        )
        self.target.to(self.device)
        followers = [*self.target.parameters()]
        if followers and can_join([*self.module.parameters()]):  # as the optimisers join the others
            join(followers)
        self.move_target = TargetUpdate(self.target, self.followed(dict(self.module.items())))
        """Moves the target networks by a share of the way."""

    def batch(self, replay: Packed) -> Batch:
        """Return a batch of transitions, noted for the statistics, its rewards scaled."""
        batch: Batch = to_torch(replay, self.device)
        self.see(batch)
        self.scale_reward(batch)
        return batch

    @classmethod
    def networks(cls, spaces: Spaces, parts: Parts, seed: int) -> dict[str, nn.Module]:
        """Make all that is trained, by name, the same for the same seed."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            made = {
                "policy": cls.make_policy(spaces, parts),
                "critics": cls.make_critics(spaces, parts),
                **cls.more_networks(spaces, parts),
            }
        begin_networks(made, parts.model.begin_from)
        return made

    @staticmethod
    @abstractmethod
    def make_policy(spaces: Spaces, parts: Parts) -> nn.Module:
        """Make the module that acts."""

    @staticmethod
    def make_critics(spaces: Spaces, parts: Parts) -> nn.Module:
        """Make the networks that judge observations and actions: two of them."""
        return Critics(spaces, ActionBounds.of(spaces).size, parts.model)

    @staticmethod
    def more_networks(spaces: Spaces, parts: Parts) -> dict[str, nn.Module]:
        """Make what is trained besides policy and critics."""
        return {}

    @abstractmethod
    def followed(self, modules: dict[str, nn.Module]) -> nn.Module:
        """Return those networks that have targets, which begin as their copies."""

    def make_optimizer(self) -> dict[str, Optimizer]:
        """Return an Adam for each module."""
        rate = value_at(self.settings.learning_rate, 0)
        return {name: self.make_adam(module, lr=rate) for name, module in self.module.items()}


class TargetCriticsTrainer(PolicyAndCriticsTrainer):
    """A trainer whose critics have targets that follow at each step; the policy has none."""

    @property
    def tau(self) -> float:
        """How far the target critics follow at each step."""
        tau: float = self.settings.tau
        return tau

    def followed(self, modules: dict[str, nn.Module]) -> nn.Module:
        """Return the critics."""
        return modules["critics"]

    def handle(self, replay: Packed) -> Iterator[Batch]:
        """Yield the batch; after its step the target critics follow."""
        yield self.batch(replay)
        self.move_target(self.tau)


C = TypeVar("C", bound=PolicyAndCriticsConfig)
T = TypeVar("T")


class PolicyAndCritics(OffPolicy[C]):
    """An algorithm for continuous actions, whose policy climbs what its critics estimate."""

    example = "Pendulum-v1"
    takes = Takes(actions=("box",), bounded=True, gamecores=True)
    configs: ClassVar[dict[str, type[Any]]] = {**OffPolicy.configs, "agent": NoiseConfig}
    trainer: ClassVar[type[PolicyAndCriticsTrainer]]
    choice_trainer: ClassVar[type[PolicyAndCriticsTrainer] | None] = None
    """The trainer for a single choice, where there is one."""

    @classmethod
    def defaults(cls, task: str) -> Mapping[str, Any]:
        """Return a larger network, and fewer environments: each frame has an update."""
        return {"model.hidden": (256, 256), "source.num_envs": 4}

    def policy(self, spaces: Spaces, seed: int) -> nn.Module:
        """Return the policy, the same for the same seed."""
        return self.trainer_for(spaces).networks(spaces, self.parts, seed)["policy"]

    def trainer_for(self, spaces: Spaces) -> type[PolicyAndCriticsTrainer]:
        """Return the trainer that suits the actions."""
        return trainer_suiting(spaces, self.trainer, self.choice_trainer)


def trainer_suiting(spaces: Spaces, trainer: T, choice_trainer: T | None) -> T:
    """Return the trainer for a single choice, if there is one and that is what is done."""
    is_one = ActionVector(spaces.action, spaces.origin).is_one
    return choice_trainer if is_one and choice_trainer is not None else trainer
