"""PPO: each policy version plays, the trainer passes over what it played, the next one follows.

Schulman et al. 2017, "Proximal policy optimization algorithms", Algorithm 1. On-policy and in
lockstep. Here runners play; `bray train` has the same trainer with gamecores over the wire
(`bray.training.wire`). A policy with memory is trained on whole segments, from the state in which
each began.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from bray.checks import fraction, layers, not_negative, positive
from bray.goal import Goal, Outcome
from bray.run import Run
from bray.sources import atari
from bray.training.compute import ComputeConfig
from bray.training.minibatches import minibatches
from bray.training.on_policy import Flow, learn
from bray.training.play_gap import PlayGap
from bray_algo import gae, schedules
from bray_algo.columns import standardised
from bray_algo.distributions import outputs as distribution
from bray_algo.losses import ppo
from bray_core import metrics
from bray_core.layout import Packed
from bray_core.protocols import BufferProtocol, ModelProtocol
from bray_trainer import Trainer, TrainerConfig
from bray_trainer.frame_stacks import as_tensors
from bray_trainer.sequences import (
    IS_CURRENT,
    Batch,
    final_value,
    in_order,
    select_segments,
    select_steps,
    time_major,
    unroll,
    valid_steps,
)

_WINDOW = 100
"""Episodes over which the training return is averaged."""
_REPLAYS_BETWEEN_PAUSES = 8
"""Replays between two evaluations."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Config(ComputeConfig):
    """Of the algorithm and of what plays for it."""

    steps_per_replay: int = 512
    """Environment steps that one policy version collects and is trained on."""
    epochs: int = 10
    """Passes over each replay."""
    minibatch_size: int = 128
    """Steps of one optimiser step, at most; with memory, of whole segments that have so many."""
    learning_rate: float = 1e-3
    """Adam's step size at the start."""
    gamma: float = 0.99
    """Discount per step."""
    gae_lambda: float = 0.95
    """λ of generalised advantage estimation."""
    clip: float = 0.2
    """Clip range ε of the probability ratio."""
    value_coefficient: float = 0.5
    """Weight of the value loss."""
    entropy_coefficient: float = 0.0
    """Weight of the entropy bonus."""
    max_grad_norm: float = 0.5
    """Gradient norm above which gradients are scaled down."""
    anneal_frames: int = 0
    """Frames over which the learning rate falls linearly to a tenth; 0 keeps it constant."""
    checkpoint_every: int = 20
    """Replays between two checkpoints."""
    hidden: tuple[int, ...] = (64, 64)
    """Units of the policy's hidden layers, and of the value function's."""
    memory_size: int = 0
    """Units of an LSTM between these and the heads; 0 is none."""
    segment_length: int = 32
    """Steps T of one segment; with memory, those that gradients go back through. 16 to 256."""
    num_envs: int = 16
    """Environments side by side, of one worker, or of one gamecore process."""
    num_workers: int = 1
    """That play, on Ray; over the wire, those that answer."""

    def __post_init__(self) -> None:
        ComputeConfig.__post_init__(self)
        positive(
            steps_per_replay=self.steps_per_replay,
            epochs=self.epochs,
            minibatch_size=self.minibatch_size,
            learning_rate=self.learning_rate,
            max_grad_norm=self.max_grad_norm,
            checkpoint_every=self.checkpoint_every,
            segment_length=self.segment_length,
            num_envs=self.num_envs,
            num_workers=self.num_workers,
        )
        fraction(gamma=self.gamma, gae_lambda=self.gae_lambda, clip=self.clip)
        layers(hidden=self.hidden)
        not_negative(
            anneal_frames=self.anneal_frames,
            memory_size=self.memory_size,
            value_coefficient=self.value_coefficient,
            entropy_coefficient=self.entropy_coefficient,
        )


DEFAULTS = {
    atari.TASKS: Config(
        **atari.settings(),
        steps_per_replay=atari.shared(2048),
        epochs=3,
        minibatch_size=256,
        learning_rate=2.5e-4,
        clip=0.1,
        entropy_coefficient=0.01,
    )
}
"""Of Atari games."""


class PPOTrainer(Trainer):
    """Trains a policy of `bray.policies.networks`.

    With a goal it pauses (`should_pause`) when the mean training return over the last 100 episodes
    has reached `goal.evaluate_at`, so that the driver can evaluate, and when `goal.max_frames` are
    used up.
    """

    def __init__(
        self,
        module: nn.Module,
        buffer: BufferProtocol,
        *,
        model: ModelProtocol,
        part: Config,
        seed: int,
        goal: Goal | None = None,
        directory: Path | None = None,
    ) -> None:
        self.part = part
        self.goal = goal
        self.frames = 0
        self.last_pause = -_REPLAYS_BETWEEN_PAUSES
        self.replays_seen = 0
        self.gap = PlayGap()
        self.returns: deque[float] = deque(maxlen=_WINDOW)
        self.generator = torch.Generator().manual_seed(seed)
        config = TrainerConfig(
            learning_rate=part.learning_rate,
            max_grad_norm=part.max_grad_norm,
            checkpoint_every=part.checkpoint_every,
            precision=part.precision,
            device=part.device,
            threads=part.trainer_threads,
            seed=seed,
        )
        super().__init__(module, buffer, model=model, config=config, directory=directory)

    def handle(self, replay: Packed) -> Iterator[Batch]:
        """Yield shuffled minibatches of one replay, its advantages computed once.

        They are of steps; with memory, of whole segments. Each is in one minibatch of an epoch.
        """
        segments = self._with_advantages(in_order(replay))
        has_memory = "initial_state" in segments
        rows = segments if has_memory else _flat(segments, "observation")
        select = select_segments if has_memory else select_steps
        steps = [1] * len(rows["advantage"])
        if has_memory:
            steps = segments["length"].tolist()
        for _ in range(self.part.epochs):
            order = torch.randperm(len(steps), generator=self.generator)
            for index in minibatches(order, steps, self.part.minibatch_size):
                yield select(rows, index)

    def _with_advantages(self, replay: Packed) -> Batch:
        """Return a replay's segments, time-major, with `advantage` and `return`."""
        segments = time_major(replay, self.device)
        self.gap.begin(segments, self.policy_version)
        self._count(segments)
        with torch.no_grad():
            final = final_value(self.module, segments)
        segments["advantage"] = gae(
            segments["reward"],
            segments["value"],
            final,
            segments["terminated"],
            segments["length"],
            gamma=self.part.gamma,
            lambda_=self.part.gae_lambda,
        )
        segments["return"] = segments["advantage"] + segments["value"]
        _record_fit(segments)
        return segments

    def _count(self, segments: Any) -> None:
        self.frames += int(segments["length"].sum())
        self.replays_seen += 1
        ended = segments["episode_return"]
        self.returns.extend(ended[~ended.isnan()].tolist())

    def loss(self, batch: Batch, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return PPO's loss over one minibatch, advantages normalised within it."""
        if "initial_state" in batch:
            outputs = select_steps(unroll(self.module, batch)[0], valid_steps(batch))
            batch = _flat(batch)
        else:
            outputs = self.module(as_tensors(batch["observation"]))
        log_prob, entropy = distribution.log_prob_and_entropy(outputs, batch["action"])
        return ppo.loss(
            self.gap.see(log_prob, batch),
            entropy,
            outputs["value"],
            batch["log_prob"],
            standardised(batch["advantage"]),
            batch["return"],
            clip=self.part.clip,
            value_coefficient=self.part.value_coefficient,
            entropy_coefficient=self.part.entropy_coefficient,
        )

    def make_scheduler(self) -> LRScheduler | None:
        """Return the fall of the learning rate to a tenth, if it is wanted."""
        if not self.part.anneal_frames:
            return None
        assert isinstance(self.optimizer, torch.optim.Optimizer)
        replays = self.part.anneal_frames / self.part.steps_per_replay
        fall = partial(schedules.linear, start=1.0, end=0.1, num_steps=replays)
        return LambdaLR(self.optimizer, fall)

    def should_pause(self) -> bool:
        """Return whether the driver should evaluate now."""
        if self.goal is None:
            return False
        if self.frames >= self.goal.budget:
            return True
        if self.replays_seen - self.last_pause < _REPLAYS_BETWEEN_PAUSES:
            return False
        if len(self.returns) < _WINDOW or not self.goal.is_promising(self.mean_return()):
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


def _record_fit(segments: Batch) -> None:
    """Record how much of the returns' variance the value function explains."""
    steps = select_steps(
        {name: segments[name] for name in ("return", "value")}, valid_steps(segments)
    )
    spread = steps["return"].var(correction=0)
    if spread > 0:
        error = (steps["return"] - steps["value"]).var(correction=0)
        metrics.record("trainer/explained_variance", float(1 - error / spread))


def _flat(segments: Batch, *more: str) -> Batch:
    """Return the valid steps of segments, `[N, …]`: what a minibatch needs, and `more`."""
    names = ["action", "log_prob", "advantage", "return", *more]
    names += [IS_CURRENT] if IS_CURRENT in segments else []
    flat: Batch = select_steps({name: segments[name] for name in names}, valid_steps(segments))
    return flat


def train(
    run: Run, task: str, config: Config | None = None, *, goal: Goal, seed: int = 1
) -> Outcome:
    """Train until the goal is reached or its frames are used up.

    Args:
        run: of `bray.init`; an existing trial goes on from its checkpoint.
        task: a Gymnasium id.
        config: of the algorithm.
        goal: the evaluation's return, and when to give up.
        seed: of network, environments and draws.
    """
    config = config or Config()
    title, flow = f"PPO on {task}", Flow(config.steps_per_replay)
    return learn(run, title, task, config, PPOTrainer, flow, goal=goal, seed=seed)
