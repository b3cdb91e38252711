"""Behaviour cloning: recorded episodes → log likelihood of what was done → a policy.

Pomerleau 1989, "ALVINN: an autonomous land vehicle in a neural network". Nothing is played but the
evaluations. Where demonstrations come from: `bray.sources.demonstrations`, and
`bray/templates/demonstrate.py` makes some.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from bray.checks import fraction, layers, not_negative, positive
from bray.goal import Goal, Outcome, conclude
from bray.policies.networks import example_inputs, make_policy
from bray.retention import offer_best
from bray.run import Run
from bray.sources import demonstrations
from bray.sources.environments import Spaces
from bray.training.evaluation import evaluate_latest
from bray.training.progress import display
from bray_algo.distributions import outputs as distribution
from bray_algo.losses import cloning, ppo
from bray_core.cli import check_interrupted
from bray_core.protocols import ModelProtocol
from bray_trainer import Trainer, TrainerConfig

_POLL_S = 0.25


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Of the algorithm and of its data."""

    demonstrations: str = "demonstrations"
    """Folder of recorded episodes."""
    hidden: tuple[int, ...] = (64, 64)
    """Units of the policy's hidden layers."""
    learning_rate: float = 1e-3
    """Adam's."""
    batch_size: int = 256
    """Demonstrated steps of one step of the optimiser."""
    gamma: float = 0.99
    """Discount per step of the returns that the value is regressed to."""
    value_coefficient: float = 0.5
    """Weight of its loss: reinforcement learning can go on from there."""
    evaluate_every: int = 200
    """Optimiser steps between two evaluations."""
    max_steps: int = 2_000
    """Optimiser steps after which training gives up."""

    def __post_init__(self) -> None:
        layers(hidden=self.hidden)
        positive(
            learning_rate=self.learning_rate,
            batch_size=self.batch_size,
            evaluate_every=self.evaluate_every,
            max_steps=self.max_steps,
        )
        fraction(gamma=self.gamma)
        not_negative(value_coefficient=self.value_coefficient)


class CloningTrainer(Trainer):
    """One batch of demonstrated steps is one step; it pauses before each evaluation."""

    def __init__(
        self,
        module: nn.Module,
        spaces: Spaces,
        config: Config,
        seed: int,
        model: ModelProtocol | None = None,
        directory: Path | None = None,
    ) -> None:
        self.settings = config
        source = demonstrations.source(
            config.demonstrations,
            *spaces.recorded,
            gamma=config.gamma,
            batch_size=config.batch_size,
            seed=seed,
        )
        trainer = TrainerConfig(
            learning_rate=config.learning_rate,
            publish_every=config.evaluate_every,
            checkpoint_every=config.evaluate_every,
            seed=seed,
        )
        super().__init__(module, source, model=model, config=trainer, directory=directory)

    def loss(self, batch: dict[str, Any], step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return −log π of what was done, with the error of the value where it is known."""
        outputs = self.module(batch["observation"])
        loss, terms = cloning.likelihood_loss(distribution.log_prob(outputs, batch["action"]))
        known = ~batch["return"].isnan()
        error = ppo.value_error(outputs["value"], batch["return"], valid=known)
        return loss + self.settings.value_coefficient * error, {**terms, "value_loss": error}

    def should_pause(self) -> bool:
        """Return whether the driver should evaluate now."""
        return self.steps % self.settings.evaluate_every == 0


def train(
    run: Run, task: str, config: Config | None = None, *, goal: Goal, seed: int = 1
) -> Outcome:
    """Clone until an evaluation reaches the goal or the steps are used up.

    Args:
        run: of `bray.init`; an existing trial goes on from its checkpoint.
        task: a Gymnasium id, in which the demonstrations were played.
        config: of the algorithm.
        goal: the evaluation's return; its frames count nothing here.
        seed: of network, order and evaluation.
    """
    config = config or Config()
    demonstrated = demonstrations.mean_return(config.demonstrations)
    spaces, began = Spaces.of(task), time.monotonic()
    module, example = make_policy(spaces, config.hidden, 0, seed), example_inputs(spaces, 0)
    model = run.model("policy", module, example)
    checkpoints = run.experiment.checkpoints
    make = partial(CloningTrainer, module, spaces, config, seed, model, checkpoints)
    trainer = run.trainer("cloning", make)
    with display(f"behaviour cloning on {task}: demonstrated {demonstrated:.1f}") as view:
        while True:
            trainer.start()
            while not trainer.wait(_POLL_S):
                check_interrupted()
            figures = trainer.progress()
            version = int(model.checkpoint().stem)
            returns = evaluate_latest(model, module, example, task, goal, seed=seed)
            mean, steps = float(np.mean(returns)), figures["steps"]
            offer_best(run, model, version, mean, frames=0)
            view.say(f"evaluation at {steps} steps: mean return {mean:.2f}")
            told = {"steps": steps, "loss": figures["loss"], "evaluation_return": mean}
            run.report(told, save=lambda: None)  # a pause has written a checkpoint
            is_reached = goal.is_reached(mean)
            if is_reached or steps >= config.max_steps:
                outcome = Outcome(
                    reached=is_reached,
                    evaluation_return=mean,
                    frames=0,
                    seconds=time.monotonic() - began,
                    version=model.version,
                )
                return conclude(run.experiment.path, outcome)
