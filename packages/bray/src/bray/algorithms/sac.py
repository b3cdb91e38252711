"""SAC: squashed Gaussian policy → replay → two soft critics → policy and temperature.

Haarnoja et al. 2018, "Soft actor-critic algorithms and applications" (arXiv 1812.05905).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from bray.policies.continuous import ActionBounds, Critics
from bray.sources.environments import Spaces
from bray.training.algorithm import Parts, Takes
from bray.training.off_policy import OffPolicy, OffPolicyConfig
from bray_algo import mlp
from bray_algo.distributions import squashed_gaussian
from bray_algo.losses import sac
from bray_algo.networks.polyak import polyak_
from bray_core.layout import Packed
from bray_core.protocols import ModelProtocol
from bray_core.settings.ranges import PositiveFloat, PositiveInt, Range
from bray_trainer import Trainer, TrainerConfig, to_torch

_LOG_STD = (-10.0, 2.0)
"""Bounds of the policy's log standard deviation, before the squashing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SACConfig(OffPolicyConfig):
    """SAC's hyperparameters."""

    replays_per_collect: PositiveInt = 64
    """Optimiser steps after `steps_per_collect`: by default one for each frame."""
    learning_rate: PositiveFloat = 1e-3
    """Adam\'s step size, for policy, critics and temperature. Too large and the values run
    away; too small and they creep. 1e-4 to 3e-3."""
    tau: Annotated[float, Range(above=0, maximum=1)] = 0.005
    """How far the target networks follow at each step, 0 to 1. Too fast and the target chases the
    network; too slow and learning waits for it. 0.001 to 0.02."""
    alpha: PositiveFloat = 0.2
    """Temperature at the start: weight of the entropy beside the return. It is learnt from there;
    too large a start explores long, too small a one hardly. 0.05 to 1."""
    target_entropy: float | None = None
    """Entropy that the temperature aims at, of the actions scaled to (−1, 1), in nats. Higher
    explores more. None: −(number of action dimensions)."""


class SACPolicy(nn.Module):
    """A Gaussian squashed by tanh between the bounds of a Box."""

    def __init__(self, size: int, bounds: ActionBounds, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.bounds = bounds
        self.body = mlp([size, *hidden, 2 * bounds.size], nn.ReLU, output_gain=0.01)

    def parameters_of(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log standard deviation `[B, D]`, before the squashing."""
        mean, log_std = self.body(observation.float()).chunk(2, -1)
        return mean, log_std.clamp(*_LOG_STD)

    def forward(self, observation: Tensor) -> dict[str, Tensor]:
        """Map observations `[B, S]` to `mean, log_std, low, high [B, D]` and a `value` of 0."""
        mean, log_std = self.parameters_of(observation)
        low, high = self.bounds.low.expand_as(mean), self.bounds.high.expand_as(mean)
        value = torch.zeros_like(mean[:, 0])
        return {"mean": mean, "log_std": log_std, "low": low, "high": high, "value": value}


class Temperature(nn.Module):
    """The learned log α."""

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor(math.log(alpha)))


def networks(spaces: Spaces, parts: Parts, seed: int) -> dict[str, nn.Module]:
    """Make policy, critics and temperature, the same for the same seed."""
    bounds = ActionBounds.of(spaces)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return {
            "policy": SACPolicy(spaces.size, bounds, parts.model.hidden),
            "critics": Critics(spaces.size, bounds.size, parts.model.hidden),
            "temperature": Temperature(parts.trainer.alpha),
        }


class SACTrainer(Trainer):
    """One replay is one batch of transitions is one step of policy, critics and temperature."""

    def __init__(
        self,
        spaces: Spaces,
        parts: Parts,
        seed: int,
        model: ModelProtocol,
        buffer: Any,
        directory: Path | None = None,
    ) -> None:
        config: SACConfig = parts.trainer
        self.settings = config
        modules = networks(spaces, parts, seed)
        self.target = copy.deepcopy(modules["critics"]).requires_grad_(False)
        wanted, size = config.target_entropy, spaces.action.shape[0]
        self.target_entropy = -float(size) if wanted is None else wanted
        trainer = TrainerConfig(
            prefetch=0,
            publish_every=config.replays_per_collect,
            checkpoint_every=10_000,
            seed=seed,
        )
        super().__init__(
            modules, buffer, model={"policy": model}, config=trainer, directory=directory
        )

    def make_optimizer(self) -> dict[str, Optimizer]:
        """Return an Adam for each module."""
        return {
            name: Adam(module.parameters(), lr=self.settings.learning_rate, fused=True)
            for name, module in self.module.items()
        }

    def handle(self, replay: Packed) -> Iterator[dict[str, Tensor]]:
        """Yield the batch; after its step the target critics follow."""
        yield to_torch(replay, self.device)
        polyak_(self.target, self.module["critics"], self.settings.tau)

    def loss(
        self, batch: dict[str, Tensor], step: int
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the losses of policy, critics and temperature."""
        policy, critics = self.module["policy"], self.module["critics"]
        log_alpha = self.module["temperature"].log_alpha
        alpha = log_alpha.detach().exp()
        observation, following = batch["observation"], batch["next_observation"]
        with torch.no_grad():
            action, log_prob = squashed_gaussian.sample_with_log_prob(
                *policy.parameters_of(following)
            )
            target = sac.target(
                self.target(following, action),
                log_prob,
                batch["reward"],
                batch["discount"],
                alpha=alpha,
            )
        taken = policy.bounds.unit(batch["action"])
        critic_loss, terms = sac.critic_loss(critics(observation, taken), target)
        action, log_prob = squashed_gaussian.sample_with_log_prob(
            *policy.parameters_of(observation)
        )
        policy_loss, policy_terms = sac.actor_loss(
            critics(observation, action), log_prob, alpha=alpha
        )
        temperature_loss, temperature_terms = sac.temperature_loss(
            log_alpha, log_prob, target_entropy=self.target_entropy
        )
        losses = {"policy": policy_loss, "critics": critic_loss, "temperature": temperature_loss}
        return losses, {**policy_terms, **terms, **temperature_terms}

    def state_dict(self) -> dict[str, Any]:
        """Return the target critics."""
        return {"target": self.target.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore them."""
        self.target.load_state_dict(state["target"])


class SAC(OffPolicy[SACConfig]):
    """A stochastic policy that is paid for its return and for its entropy."""

    title = "SAC"
    example = "Pendulum-v1"
    takes = Takes(actions=("box",), gamecores=True)
    configs: ClassVar[dict[str, type[Any]]] = {**OffPolicy.configs, "trainer": SACConfig}
    trainer = SACTrainer

    @classmethod
    def defaults(cls, task: str) -> Mapping[str, Any]:
        """Return a larger network, and fewer environments: each frame has an update."""
        return {"model.hidden": (256, 256), "source.num_envs": 4}

    def policy(self, spaces: Spaces, seed: int) -> nn.Module:
        """Return the policy, the same for the same seed."""
        return networks(spaces, self.parts, seed)["policy"]
