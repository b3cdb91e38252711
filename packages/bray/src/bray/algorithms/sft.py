"""Supervised fine-tuning: demonstrations → cross-entropy of their tokens → a language model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from bray.goal import Goal, Outcome
from bray.run import Run
from bray.text.config import TokenTrainerConfig
from bray.text.drawn_source import DrawnSource
from bray.text.row_queue import pack_demonstrations
from bray.text.task_loading import demonstrations_of, load_task
from bray.text.text_algorithm import TextAlgorithm
from bray.text.trainers.supervised_trainer import SupervisedTrainer
from bray_core.errors import ConfigError
from bray_core.settings.ranges import PositiveFloat, PositiveInt, check_fields


@dataclass(frozen=True, kw_only=True, slots=True)
class SFTConfig(TokenTrainerConfig):
    """The hyperparameters of supervised fine-tuning."""

    batch_size: PositiveInt = 32
    """Demonstrations of one step of the optimiser. 16 to 512."""
    learning_rate: PositiveFloat = 2e-5
    """AdamW's step size. 1e-5 to 1e-4 for pretrained models, 1e-3 to 3e-3 for tiny new ones."""

    def __post_init__(self) -> None:
        check_fields(self)


class SFT(TextAlgorithm[SFTConfig]):
    """A language model learns demonstrations by heart; evaluations ask the task's prompts.

    Frames are demonstrations.
    """

    title = "supervised fine-tuning"
    configs: ClassVar[dict[str, type[Any]]] = {**TextAlgorithm.configs, "trainer": SFTConfig}

    def train(self, run: Run, *, goal: Goal, seed: int = 1) -> Outcome:
        """Train on batches of demonstrations; see `Algorithm`."""
        task = load_task(self.parts.source)
        parts = self.make_parts(run, seed)
        demonstrate = demonstrations_of(self.parts.source, task, parts.model)
        if demonstrate is None:
            raise ConfigError(
                "source.demonstrations: missing: expected a file with `prompt` and `completion`, "
                "or with `messages`, or a task that has demonstrations"
            )
        trainer = SupervisedTrainer(
            parts.module,
            parts.queue,
            self.config,
            seed=seed,
            model=parts.published,
            directory=run.experiment.checkpoints,
        )
        asked = replace(self.parts.source, program=None, external=False)
        _, rounds = self.players(run, parts, asked, task, seed)
        source = DrawnSource(
            lambda count, rng: pack_demonstrations(
                demonstrate(count, rng), int(trainer.progress()["version"])
            ),
            parts.queue,
            self.config.batch_size,
            trainer,
            seed,
        )
        return self.conduct(run, parts, trainer, source, rounds, goal, seed)
