"""PPO over the whole loop: gamecores → actor → model → buffer → trainer → model.

On-policy and in lock-step: each policy version answers exactly `steps_per_replay` ticks, the
trainer takes them as one replay, trains `epochs` passes of minibatches (Schulman et al. 2017,
Algorithm 1), publishes the next version, and the waiting ticks go on. So the same seed gives the
same run although the gamecores are processes of their own.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bray.template import GoalPart, ModelPart, Template, TrainerPart
from bray_actor import PolicyActor, PolicyConfig, Recorder, StepBudget
from bray_actor.spaces import resolve
from bray_algo import PolicyValueMLP, gae, ppo_loss
from bray_core.errors import ConfigError
from bray_core.layout import Packed
from bray_core.nested import ArraySpec
from bray_core.protocols import Actor, Buffer, Model
from bray_trainer import Trainer, TrainerConfig, to_torch

Batch = dict[str, Tensor]

_WINDOW = 100
"""Episodes over which the training return is averaged."""
_REPLAYS_BETWEEN_PAUSES = 8
"""Replays between two evaluations."""


@dataclass(frozen=True, slots=True)
class Spaces:
    """What goes into the policy and what comes out, read from an environment."""

    observation: ArraySpec
    action: ArraySpec
    num_actions: int

    @classmethod
    def of(cls, environment: str) -> Spaces:
        """Read an environment's spaces.

        Raises:
            ConfigError: its observations are no flat vector, or its actions not discrete.
        """
        env = gymnasium.make(resolve(environment))
        observation, action = env.observation_space, env.action_space
        env.close()
        if not isinstance(observation, gymnasium.spaces.Box) or len(observation.shape) != 1:
            raise ConfigError(
                f"source.environment: recipe ppo takes flat Box observations, got {observation}"
            )
        if not isinstance(action, gymnasium.spaces.Discrete):
            raise ConfigError(
                f"source.environment: recipe ppo takes Discrete actions, got {action}"
            )
        return cls(
            ArraySpec(np.dtype(np.float32), observation.shape),
            ArraySpec(np.dtype(np.int64), ()),
            int(action.n),
        )

    @property
    def example(self) -> NDArray[np.float32]:
        """One observation with a batch dimension."""
        return np.zeros((1, *self.observation.shape), np.float32)


def network(part: ModelPart, spaces: Spaces, seed: int) -> nn.Module:
    """Make the policy network, the same for the same seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return PolicyValueMLP(spaces.observation.shape[0], spaces.num_actions, hidden=part.hidden)


def make_trainer(
    template: Template,
    seed: int,
    model: Model,
    buffer: Buffer,
    spaces: Spaces,
    directory: Path,
) -> PPOTrainer:
    """Make the trainer, in whichever process it lives."""
    return PPOTrainer(
        network(template.model, spaces, seed),
        buffer,
        model=model,
        part=template.trainer,
        goal=template.goal,
        seed=seed,
        directory=directory,
    )


def make_actors(
    template: Template, seed: int, model: Model, buffer: Buffer, episodes: Path
) -> Callable[[str], Actor]:
    """Make the session factory of one actor worker, in the worker's process."""
    steps = template.trainer.steps_per_replay // template.actor.num_workers
    actions = Spaces.of(template.source.environment).num_actions
    config = PolicyConfig(seed=seed, num_actions=actions)
    budget = StepBudget(steps, model)
    make = PolicyActor.factory(model, config, buffer=buffer, budget=budget)
    every = template.actor.record_every
    return Recorder(episodes, every=every).record(make) if every else make


class PPOTrainer(Trainer):
    """Trains a module whose outputs are `logits [B, A]` and `value [B]`.

    Pauses (`should_pause`) when the mean training return over the last 100 episodes has reached
    `goal.evaluate_at`, so that the driver can evaluate, and when `goal.max_frames` are used up.
    """

    def __init__(
        self,
        module: nn.Module,
        buffer: Buffer,
        *,
        model: Model,
        part: TrainerPart,
        goal: GoalPart,
        seed: int,
        directory: Path | None = None,
    ) -> None:
        self.part = part
        self.goal = goal
        self.frames = 0
        self.last_pause = -_REPLAYS_BETWEEN_PAUSES
        self.replays_seen = 0
        self.returns: deque[float] = deque(maxlen=_WINDOW)
        self.generator = torch.Generator().manual_seed(seed)
        config = TrainerConfig(
            learning_rate=part.learning_rate,
            max_grad_norm=part.max_grad_norm,
            checkpoint_every=part.checkpoint_every,
            seed=seed,
        )
        super().__init__(module, buffer, model=model, config=config, directory=directory)

    def handle(self, replay: Packed) -> Iterator[Batch]:
        """Yield shuffled minibatches of one replay, its advantages computed once."""
        steps = self._steps(_sorted(replay))
        count = len(steps["advantage"])
        size = min(self.part.minibatch_size, count)
        for _ in range(self.part.epochs):
            order = torch.randperm(count, generator=self.generator)
            for start in range(0, count - size + 1, size):
                index = order[start : start + size]
                yield {name: leaf[index] for name, leaf in steps.items()}

    def _steps(self, replay: Packed) -> Batch:
        """Return the valid steps of a replay, flat `[N, …]`, with advantages and returns."""
        segments = to_torch(replay, self.device)
        self._count(segments)
        length = segments["length"].long()
        by_time = {  # [B, T, ...] -> [T, B, ...]
            name: segments[name].transpose(0, 1)
            for name in ("observation", "action", "reward", "value", "log_prob")
        }
        terminated = segments["terminated"].transpose(0, 1)
        with torch.no_grad():
            final_value = self.module(segments["final_observation"])["value"]
        advantage = gae(
            by_time["reward"],
            by_time["value"],
            final_value,
            terminated,
            length,
            gamma=self.part.gamma,
            lambda_=self.part.gae_lambda,
        )
        by_time["advantage"] = advantage
        by_time["return"] = advantage + by_time["value"]
        valid = torch.arange(len(terminated), device=self.device)[:, None] < length
        return {name: leaf[valid] for name, leaf in by_time.items()}

    def _count(self, segments: Any) -> None:
        self.frames += int(segments["length"].sum())
        self.replays_seen += 1
        ended = segments["episode_return"]
        self.returns.extend(ended[~ended.isnan()].tolist())

    def loss(self, batch: Batch, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return PPO's loss over one minibatch, advantages normalised within it."""
        outputs = self.module(batch["observation"])
        advantage = batch["advantage"]
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        return ppo_loss(
            outputs["logits"],
            outputs["value"],
            batch["action"],
            batch["log_prob"],
            advantage,
            batch["return"],
            clip=self.part.clip,
            value_coefficient=self.part.value_coefficient,
            entropy_coefficient=self.part.entropy_coefficient,
        )

    def should_pause(self) -> bool:
        """Return whether the driver should evaluate now."""
        if self.frames >= self.goal.max_frames:
            return True
        if self.replays_seen - self.last_pause < _REPLAYS_BETWEEN_PAUSES:
            return False
        if len(self.returns) < _WINDOW or self.mean_return() < self.goal.evaluate_at:
            return False
        self.last_pause = self.replays_seen
        return True

    def mean_return(self) -> float:
        """Return the mean of the last 100 episode returns of training; 0 before the first."""
        return float(np.mean(self.returns)) if self.returns else 0.0

    def progress(self) -> dict[str, float]:
        """Return the trainer's figures with frames and the mean training return."""
        return {**super().progress(), "frames": self.frames, "return": self.mean_return()}

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps beside the module and the optimiser."""
        return {
            "frames": self.frames,
            "replays_seen": self.replays_seen,
            "last_pause": self.last_pause,
            "returns": list(self.returns),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` kept."""
        self.frames = state["frames"]
        self.replays_seen = state["replays_seen"]
        self.last_pause = state["last_pause"]
        self.returns = deque(state["returns"], maxlen=_WINDOW)
        self.generator.set_state(state["generator"])


def _sorted(replay: Packed) -> Packed:
    """Put the segments into an order that does not depend on when each one arrived."""
    digests = [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in replay.block]
    order = sorted(range(len(digests)), key=digests.__getitem__)
    return Packed(replay.layout, replay.block[order])
