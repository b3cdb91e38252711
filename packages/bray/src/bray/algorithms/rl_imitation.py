"""PPO from demonstrations: it begins as their clone, softened, and imitates less and less.

Rajeswaran et al. 2018, "Learning complex dexterous manipulation with deep reinforcement learning
and demonstrations", §4: cloning, then a loss mixed of both (equation 3); here with PPO's and a
linear schedule. A sure clone explores little and moves slowly, for PPO's clip bounds the ratio of
probabilities: hence the temperature. All else is `bray.algorithms.ppo`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bray.algorithms import bc, ppo
from bray.checks import not_negative, positive
from bray.goal import Goal, Outcome
from bray.policies.networks import Policy, make_policy
from bray.run import Run
from bray.sources import demonstrations
from bray.sources.environments import Spaces
from bray.training.on_policy import Flow, learn
from bray_algo import schedules
from bray_algo.distributions import outputs as distribution
from bray_algo.losses import cloning, imitation
from bray_core import nested
from bray_core.errors import ConfigError
from bray_core.layout import Layout
from bray_core.nested import ArraySpec, Nested
from bray_core.protocols import BufferProtocol
from bray_trainer import to_torch
from bray_trainer.sequences import Batch, select_steps


@dataclass(frozen=True, kw_only=True, slots=True)
class Config(ppo.Config):
    """PPO's, and how it imitates."""

    demonstrations: str = "demonstrations"
    """Folder of recorded episodes."""
    cloning_steps: int = 200
    """Optimiser steps on demonstrations alone before the first frame."""
    temperature: float = 4.0
    """At which the clone then plays: log π is divided by it. 1 leaves it as sure as it is."""
    imitation_weight: float = 0.03
    """Of the demonstrations' loss at first, beside 1 for PPO's; 0 leaves it out."""
    imitation_frames: int = 5_000
    """Environment steps after which it has fallen to 0 in a line."""

    def __post_init__(self) -> None:
        ppo.Config.__post_init__(self)
        if self.memory_size:
            raise ConfigError(
                f"memory_size: expected 0, demonstrated steps are not in sequence, got "
                f"{self.memory_size}"
            )
        not_negative(imitation_weight=self.imitation_weight)
        positive(
            cloning_steps=self.cloning_steps,
            temperature=self.temperature,
            imitation_frames=self.imitation_frames,
        )


class ImitatingTrainer(ppo.PPOTrainer):
    """A replay is what the policy played and as many demonstrated steps."""

    part: Config

    def __init__(
        self, module: Any, buffer: BufferProtocol, *, part: Config, seed: int, **rest: Any
    ):
        self.demonstrated = demonstrations.source(
            part.demonstrations,
            *_step_specs(buffer.layout),
            gamma=part.gamma,
            batch_size=part.steps_per_replay,
            seed=seed,
        )
        both: Any = {"experience": buffer, "demonstrations": self.demonstrated}
        super().__init__(module, both, part=part, seed=seed, **rest)

    def handle(self, replay: Any) -> Iterator[Batch]:
        """Yield PPO's minibatches, each with demonstrated steps drawn for it.

        Args:
            replay: a `Packed` of each buffer, by name.
        """
        demonstrated = to_torch(replay["demonstrations"], self.device)
        count, size = len(replay["demonstrations"].block), self.part.minibatch_size
        for batch in super().handle(replay["experience"]):
            index = torch.randint(count, (size,), generator=self.generator)
            yield {**batch, "demonstrated": select_steps(demonstrated, index)}

    def loss(self, batch: Batch, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return PPO's loss and what is left of the demonstrations'.

        These count where they did better than the policy would (the filter of Nair et al. 2018).
        """
        demonstrated = batch.pop("demonstrated")
        outputs = self.module(demonstrated["observation"])
        log_prob = distribution.log_prob(outputs, demonstrated["action"])
        advantage = (demonstrated["return"] - outputs["value"]).detach()
        weight = schedules.linear(
            self.frames,
            start=self.part.imitation_weight,
            end=0.0,
            num_steps=self.part.imitation_frames,
        )
        return imitation.mixed_loss(
            super().loss(batch, step),
            cloning.likelihood_loss(log_prob, weight=cloning.advantage_filter(advantage)),
            imitation_weight=weight,
        )


def _step_specs(segments: Layout) -> tuple[Nested, Nested]:
    """Return the specs of one observation and one action from those of a segment."""
    spec: Any = segments.spec
    action = nested.map(lambda leaf: ArraySpec(leaf.dtype, leaf.shape[1:]), spec["action"])
    return spec["final_observation"], action


def train(
    run: Run, task: str, config: Config | None = None, *, goal: Goal, seed: int = 1
) -> Outcome:
    """Train until the goal is reached or its frames are used up.

    Args:
        run: of `bray.init`; an existing trial goes on from its checkpoint.
        task: a Gymnasium id, in which the demonstrations were played.
        config: of the algorithm.
        goal: the evaluation's return, and when to give up.
        seed: of network, environments and draws.
    """
    config = config or Config()
    spaces = Spaces.of(task)
    module = make_policy(spaces, config.hidden, 0, seed)
    assert isinstance(module, Policy)  # one without memory
    cloning = bc.Config(
        demonstrations=config.demonstrations,
        learning_rate=config.learning_rate,
        gamma=config.gamma,
    )
    bc.CloningTrainer(module, spaces, cloning, seed).run(config.cloning_steps)
    module.soften(config.temperature)
    return learn(
        run,
        f"PPO with imitation on {task}",
        task,
        config,
        ImitatingTrainer,
        Flow(config.steps_per_replay),
        goal=goal,
        seed=seed,
        module=module,
    )
