"""DQN: ε-greedy rollouts → replay → double Q-learning → the next policy version.

Mnih et al. 2015, "Human-level control through deep reinforcement learning"; van Hasselt et al.
2016, "Deep reinforcement learning with double Q-learning"; n-step and prioritised by `Config`.
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

from bray.checks import fraction, layers, positive
from bray.goal import Goal, Outcome
from bray.run import Run
from bray.sources.environments import Spaces
from bray.training.off_policy import OffPolicyConfig, learn
from bray_algo import mlp, schedules
from bray_algo.losses import dqn
from bray_algo.polyak import polyak_
from bray_core.layout import Packed
from bray_core.protocols import ModelProtocol
from bray_trainer import Trainer, TrainerConfig, to_torch


@dataclass(frozen=True, kw_only=True, slots=True)
class Config(OffPolicyConfig):
    """Of the algorithm; playing and replay as in `OffPolicyConfig`."""

    n_step: int = 3
    """Rewards summed before the bootstrap, 1 to 5."""
    batch_size: int = 128
    """Transitions of one step of the optimiser."""
    hidden: tuple[int, ...] = (256, 256)
    """Units of the network's hidden layers."""
    learning_rate: float = 6.3e-4
    """Adam's."""
    prioritized: bool = False
    """Whether transitions are drawn by their error."""
    target_every: int = 250
    """Optimiser steps between two copies to the target network."""
    epsilon_end: float = 0.05
    """Share of random actions after `epsilon_steps`; before, it falls from 1 in a line."""
    epsilon_steps: int = 5_000
    """Optimiser steps."""

    def __post_init__(self) -> None:
        OffPolicyConfig.__post_init__(self)  # super() does not find a class with slots
        layers(hidden=self.hidden)
        fraction(epsilon_end=self.epsilon_end)
        positive(
            learning_rate=self.learning_rate,
            target_every=self.target_every,
            epsilon_steps=self.epsilon_steps,
        )


class DQNPolicy(nn.Module):
    """Acts ε-greedily by its network's action values: ε lies in the weights, so it is published."""

    epsilon: Tensor

    def __init__(self, size: int, num_actions: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        # Values begin near 0: a bootstrap from large random ones does not recover (CartPole).
        self.q = mlp([size, *hidden, num_actions], nn.ReLU, output_gain=0.01)
        self.register_buffer("epsilon", torch.ones(()))

    def values(self, observation: Tensor) -> Tensor:
        """Return the action values `[B, A]` of observations `[B, D]` of any number type."""
        values: Tensor = self.q(observation.float())
        return values

    def forward(self, observation: Tensor) -> dict[str, Tensor]:
        """Map observations `[B, D]` to `logits [B, A]` and `value [B]`."""
        q = self.values(observation)
        return {"logits": dqn.epsilon_greedy(q, self.epsilon), "value": q.amax(-1)}


def policy(spaces: Spaces, config: Config, seed: int) -> DQNPolicy:
    """Make the policy, the same for the same seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return DQNPolicy(spaces.size, spaces.num_actions, config.hidden)


class DQNTrainer(Trainer):
    """One replay is one batch of transitions is one step."""

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
        self.replay = buffer
        module = policy(spaces, config, seed)
        self.target = copy.deepcopy(module).requires_grad_(False)
        trainer = TrainerConfig(
            learning_rate=config.learning_rate,
            max_grad_norm=10.0,
            prefetch=0,
            publish_every=config.replays_per_collect,
            checkpoint_every=10_000,
            seed=seed,
        )
        super().__init__(module, buffer, model=model, config=trainer, directory=directory)

    def handle(self, replay: Packed) -> Iterator[dict[str, Tensor]]:
        """Yield the batch; before it, what depends on the number of steps."""
        if self.steps % self.settings.target_every == 0:
            polyak_(self.target, self.module, tau=1.0)
        self.module.epsilon.fill_(
            schedules.linear(
                self.steps,
                start=1.0,
                end=self.settings.epsilon_end,
                num_steps=self.settings.epsilon_steps,
            )
        )
        yield to_torch(replay, self.device)

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
        if self.settings.prioritized:
            error = dqn.td_error(q.detach(), batch["action"], target).abs()
            self.replay.update_priorities(batch["key"].numpy(), error.numpy())
        return dqn.loss(q, batch["action"], target, weight=batch.get("weight"))

    def state_dict(self) -> dict[str, Any]:
        """Return the target network."""
        return {"target": self.target.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it."""
        self.target.load_state_dict(state["target"])


def train(
    run: Run, task: str, config: Config | None = None, *, goal: Goal, seed: int = 1
) -> Outcome:
    """Train until the goal is reached or its frames are used up.

    Args:
        run: of `bray.init`; an existing trial goes on from its checkpoint and its replay.
        task: a Gymnasium id with vector observations and Discrete actions.
        config: of the algorithm.
        goal: the evaluation's return, and when to give up.
        seed: of network, environments and draws.
    """
    config = config or Config()
    spaces = Spaces.of(task)
    module = policy(spaces, config, seed)
    replay = config.replay(run.is_local, prioritized=config.prioritized)
    make = partial(DQNTrainer, spaces, config, seed)
    title = f"DQN on {task}"
    return learn(run, title, spaces, config, module, make, replay, goal=goal, seed=seed)
