"""What the algorithms of language models share: their parts, and a run that trains one model."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from torch import nn

from bray.best import BestVersion
from bray.goal import Goal, Outcome
from bray.run import Run
from bray.text.config import (
    LanguageModelConfig,
    SamplersConfig,
    SamplingConfig,
    TextSourceConfig,
    TokenTrainerConfig,
)
from bray.text.language_model import (
    adapted,
    architecture_of,
    check_fits,
    generation_settings,
    make_text_model,
)
from bray.text.published_model import PublishedTextModel
from bray.text.rounds import Rounds
from bray.text.row_queue import RowQueue
from bray.text.samplers.players import make_players
from bray.text.samplers.sampler_worker import SamplerRecipe
from bray.text.tasks.small_models import small_model
from bray.text.trainers.token_trainer import TokenTrainer
from bray.training.algorithm import Algorithm, Pacing, Takes
from bray.training.loop import Loop, Turn, Turns
from bray_core import metrics
from bray_model.text.text_model import TextModel

C = TypeVar("C", bound=TokenTrainerConfig)


@dataclass(frozen=True, kw_only=True, slots=True)
class TextParts:
    """What a run is made of before its algorithm adds a trainer."""

    model: TextModel
    """What samples."""
    published: PublishedTextModel
    """Where the trainer publishes to."""
    architecture: Any
    """Configuration of the model, as transformers has it."""
    module: nn.Module
    """What is trained."""
    queue: RowQueue


class TextAlgorithm(Algorithm[C]):
    """An algorithm that trains a language model, in the process that runs it.

    What samples is in this process, too, or on Ray in processes of its own.
    """

    example = "bray.text.tasks.addition:Addition"
    budget = 100_000
    pacing: ClassVar[Pacing] = "lockstep"
    takes: ClassVar[Takes] = Takes(plays="prompts")
    serves = "text"
    short_run = ("goal.max_frames=64",)
    configs: ClassVar[dict[str, type[Any]]] = {
        "model": LanguageModelConfig,
        "agent": SamplingConfig,
        "source": TextSourceConfig,
        "actor": SamplersConfig,
        "trainer": TokenTrainerConfig,
    }

    @classmethod
    def defaults(cls, task: str) -> Mapping[str, Any]:
        """Return a tiny model and settings that learn, for the tasks that ship with bray."""
        return small_model(task)

    def check(self) -> None:
        """Refuse settings without a model."""
        self.parts.model.check_whole()

    def make_parts(self, run: Run, seed: int, capacity: int = 1) -> TextParts:
        """Make the model, its published versions and the queue of rows.

        Args:
            run: closes them.
            seed: seed of new weights.
            capacity: replays that the queue holds.

        Raises:
            ConfigError: the model cannot be made.
        """
        config: LanguageModelConfig = self.parts.model
        model = run.close_with(
            make_text_model(config, self.parts.agent, seed=seed, device=self.config.device)
        )
        check_fits(model.tokenizer, model)
        keep = 10 if run.retention is None else run.retention.versions
        published = PublishedTextModel(model, run.experiment.models / "policy", keep_versions=keep)
        module = model.new_module()
        architecture = architecture_of(module, model.eos_ids)
        if config.lora_rank:
            module, published.lora = adapted(module, config)
        return TextParts(
            model=model,
            published=published,
            architecture=architecture,
            module=module,
            queue=RowQueue(capacity),
        )

    def players(
        self, run: Run, parts: TextParts, source: TextSourceConfig, task: Any, seed: int
    ) -> tuple[Rounds, Rounds | None]:
        """Return what plays in training, and what plays evaluations; None: nothing can.

        Args:
            run: says where they are, and closes those in other processes.
            parts: from `make_parts`.
            source: what is played.
            task: what `load_task` returned; None: programs alone know it.
            seed: seed of the run.
        """
        logs = run.experiment.path / "programs"
        if run.is_local:
            return make_players(parts.model, self.parts.agent, source, task, logs=logs, seed=seed)
        rounds = self._samplers(run, parts, source, task, seed, logs)
        return rounds, None if task is None else rounds

    def _samplers(
        self,
        run: Run,
        parts: TextParts,
        source: TextSourceConfig,
        task: Any,
        seed: int,
        logs: Path,
    ) -> Rounds:
        """Return samplers in processes of their own, which take what is published."""
        from bray.text.samplers.remote import RemoteRounds, RemoteWeights

        has_gpu = self.config.device.startswith("cuda")
        recipe = SamplerRecipe(
            architecture=parts.architecture,
            tokenizer=parts.model.tokenizer,
            generation=generation_settings(
                self.parts.model,
                self.parts.agent,
                seed=seed,
                device="cuda" if has_gpu else self.config.device,  # each sees its own alone
            ),
            agent=self.parts.agent,
            source=source,
            logs=logs.resolve(),
            seed=seed,
            threads=self.config.trainer_threads,
            num_workers=self.parts.actor.num_workers,
        )
        published = parts.published
        weights = run.close_with(RemoteWeights(published.text.weights(), published.version))
        published.share(weights.give)
        rounds = RemoteRounds(
            recipe, task, weights, lambda: published.version, num_gpus=float(has_gpu)
        )
        return run.close_with(rounds)

    def conduct(
        self,
        run: Run,
        parts: TextParts,
        trainer: TokenTrainer,
        source: Any,
        rounds: Rounds | None,
        goal: Goal,
        seed: int,
    ) -> Outcome:
        """Train until the goal is reached or the budget is used up, and export the best version.

        Args:
            run: the run.
            parts: from `make_parts`.
            trainer: trains the module.
            source: fills the queue.
            rounds: what plays evaluations; None: nothing can, and the budget decides.
            goal: when to end.
            seed: seed of what evaluations sample.
        """
        run.close_with(source)
        evaluation = None if rounds is None else TextEvaluation(rounds, goal, self.config, seed)
        made, turn = _kept_here(run, trainer), Turn(steps=1)
        outcome = Loop(
            run,
            f"{self.title} on {self.parts.source.title}",
            trainer=made,
            source=source,
            model=parts.published,
            turn=turn,
            advance=Turns(made, source, turn),
            goal=goal,
            evaluate=lambda: None if evaluation is None else evaluation(),
            evaluate_every=self.config.evaluate_every,
            unit="samples",
        ).until_goal()
        best = BestVersion.read(run.experiment.path)
        parts.published.export(None if best is None else best.version)
        return outcome

    @abstractmethod
    def train(self, run: Run, *, goal: Goal, seed: int = 1) -> Outcome:
        """Train until the goal is reached or its budget is used up; see `Algorithm`."""


def _kept_here(run: Run, trainer: TokenTrainer) -> Any:
    """Return a run's trainer, which is in this process on Ray, too."""
    if run.is_local:
        return run.trainer("trainer", lambda: trainer)
    run.close_with(_StopsAtTheEnd(trainer))
    return trainer if run.retention is None else run.retention.trainer_factory(lambda: trainer)()


class _StopsAtTheEnd:
    def __init__(self, trainer: TokenTrainer) -> None:
        self.close = trainer.stop  # it writes a checkpoint


class TextEvaluation:
    """Asks what training never asks: once with likeliest tokens, once with sampled ones.

    Args:
        rounds: what plays.
        goal: says how many.
        config: says which of both is returned.
        seed: seed of what is sampled, the same each time.
    """

    def __init__(self, rounds: Rounds, goal: Goal, config: TokenTrainerConfig, seed: int) -> None:
        self._rounds = rounds
        self._count = goal.evaluation_episodes
        self._is_greedy = config.evaluate_greedy
        self._seed = seed

    def __call__(self) -> list[float]:
        """Return the rewards, and record the means of both."""
        greedy = self._rounds.evaluate(self._count, None)
        sampled = self._rounds.evaluate(self._count, np.random.default_rng([self._seed, 7]))
        if greedy and sampled:
            metrics.record("text/evaluation_greedy", float(np.mean(greedy)), kind="last")
            metrics.record("text/evaluation_sampled", float(np.mean(sampled)), kind="last")
        return greedy if self._is_greedy else sampled
