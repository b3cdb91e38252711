"""TD3: deterministic policy with noise → replay → two critics → a delayed policy.

Fujimoto et al. 2018, "Addressing function approximation error in actor-critic methods".
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from bray.checks import fraction, layers, positive
from bray.goal import Goal, Outcome
from bray.policies.continuous import ActionBounds, Critics
from bray.run import Run
from bray.sources.environments import Spaces
from bray.training.off_policy import OffPolicyConfig, learn
from bray_algo import mlp
from bray_algo.losses import critics, td3
from bray_algo.polyak import polyak_
from bray_core.layout import Packed
from bray_core.protocols import ModelProtocol
from bray_trainer import Trainer, TrainerConfig, to_torch


@dataclass(frozen=True, kw_only=True, slots=True)
class Config(OffPolicyConfig):
    """Of the algorithm; playing and replay as in `OffPolicyConfig`. Noise is in half ranges."""

    num_envs: int = 4
    """Environments side by side, of one worker."""
    replays_per_collect: int = 64
    """Optimiser steps after `steps_per_collect`: by default one for each frame."""
    hidden: tuple[int, ...] = (256, 256)
    """Units of the hidden layers of policy and critics."""
    learning_rate: float = 1e-3
    """Adam's, of policy and critics."""
    tau: float = 0.005
    """How far the targets follow at each step of the policy."""
    delay: int = 2
    """Steps of the critics for one of the policy."""
    warmup_noise: float = 1.0
    """Standard deviation of what is added to actions before the first training."""
    exploration_noise: float = 0.1
    """The same later."""
    target_noise: float = 0.2
    """Standard deviation of what is added to the target's actions."""
    noise_clip: float = 0.5
    """How far that may go."""

    def __post_init__(self) -> None:
        OffPolicyConfig.__post_init__(self)  # super() does not find a class with slots
        layers(hidden=self.hidden)
        fraction(tau=self.tau)
        positive(
            learning_rate=self.learning_rate,
            tau=self.tau,
            delay=self.delay,
            warmup_noise=self.warmup_noise,
            exploration_noise=self.exploration_noise,
            target_noise=self.target_noise,
            noise_clip=self.noise_clip,
        )


class TD3Policy(nn.Module):
    """A deterministic policy; the noise around it lies in the weights, so it is published."""

    noise: Tensor

    def __init__(
        self, size: int, bounds: ActionBounds, hidden: tuple[int, ...], noise: float
    ) -> None:
        super().__init__()
        self.bounds = bounds
        self.body = mlp([size, *hidden, bounds.size], nn.ReLU, output_gain=0.01)
        self.register_buffer("noise", torch.tensor(noise))

    def unit(self, observation: Tensor) -> Tensor:
        """Return the actions `[B, D]` of observations `[B, S]`, scaled to (−1, 1)."""
        return torch.tanh(self.body(observation.float()))

    def forward(self, observation: Tensor) -> dict[str, Tensor]:
        """Map observations `[B, S]` to `mean, log_std [B, D]` and a `value` of 0."""
        mean = self.bounds.scale(self.unit(observation))
        std = self.noise * (self.bounds.high - self.bounds.low) / 2
        value = torch.zeros_like(mean[:, 0])
        return {"mean": mean, "log_std": std.log().expand_as(mean), "value": value}


def networks(spaces: Spaces, config: Config, seed: int) -> dict[str, nn.Module]:
    """Make policy and critics, the same for the same seed."""
    bounds = ActionBounds.of(spaces)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return {
            "policy": TD3Policy(spaces.size, bounds, config.hidden, config.warmup_noise),
            "critics": Critics(spaces.size, bounds.size, config.hidden),
        }


class TD3Trainer(Trainer):
    """One replay is one batch of transitions is one step of the critics."""

    def __init__(
        self,
        spaces: Spaces,
        config: Config,
        seed: int,
        model: ModelProtocol,
        buffer: Any,
        directory: Path | None = None,
    ) -> None:
        self.settings = config
        modules = networks(spaces, config, seed)
        self.target: Any = copy.deepcopy(nn.ModuleDict(modules)).requires_grad_(False)
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
        """Yield the batch; after a step of the policy the targets follow."""
        self.module["policy"].noise.fill_(self.settings.exploration_noise)
        is_delayed_step = td3.is_actor_step(self.steps, self.settings.delay)
        yield to_torch(replay, self.device)
        if is_delayed_step:
            polyak_(self.target, self.module, self.settings.tau)

    def loss(
        self, batch: dict[str, Tensor], step: int
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the loss of the critics and, in each `delay`-th step, of the policy."""
        policy, members = self.module["policy"], self.module["critics"]
        observation, following = batch["observation"], batch["next_observation"]
        with torch.no_grad():
            action = td3.smoothed(
                self.target["policy"].unit(following),
                noise=self.settings.target_noise,
                noise_clip=self.settings.noise_clip,
            )
            next_q = self.target["critics"](following, action)
            target = td3.target(next_q, batch["reward"], batch["discount"])
        taken = policy.bounds.unit(batch["action"])
        loss, terms = critics.critic_loss(members(observation, taken), target)
        if not td3.is_actor_step(step, self.settings.delay):
            return {"critics": loss}, terms
        policy_loss, _ = td3.actor_loss(members.first(observation, policy.unit(observation)))
        return {"critics": loss, "policy": policy_loss}, terms

    def state_dict(self) -> dict[str, Any]:
        """Return the target networks."""
        return {"target": self.target.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore them."""
        self.target.load_state_dict(state["target"])


def train(
    run: Run, task: str, config: Config | None = None, *, goal: Goal, seed: int = 1
) -> Outcome:
    """Train until the goal is reached or its frames are used up.

    Args:
        run: of `bray.init`; an existing trial goes on from its checkpoint and its replay.
        task: a Gymnasium id with vector observations and a bounded Box of actions.
        config: of the algorithm.
        goal: the evaluation's return, and when to give up.
        seed: of networks, environments and draws.
    """
    config = config or Config()
    spaces = Spaces.of(task)
    module = networks(spaces, config, seed)["policy"]
    replay = config.replay(run.is_local)
    make = partial(TD3Trainer, spaces, config, seed)
    title = f"TD3 on {task}"
    return learn(run, title, spaces, config, module, make, replay, goal=goal, seed=seed)
