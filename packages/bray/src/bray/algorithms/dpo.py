"""DPO: pairs of answers of which one was preferred → a language model, without sampling.

Rafailov et al. 2023, "Direct preference optimization: your language model is secretly a reward
model". Nothing is sampled but the answers of evaluations.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from bray.goal import Goal, Outcome
from bray.run import Run
from bray.text.drawn_source import DrawnSource
from bray.text.preference_pairs import pack_pairs, pairs_of
from bray.text.prompt_files import SUFFIXES
from bray.text.task_loading import load_task
from bray.text.text_algorithm import TextAlgorithm
from bray.text.trainers.preference_trainer import DPOConfig, PreferenceTrainer


class DPO(TextAlgorithm[DPOConfig]):
    """A language model learns which of two answers is preferred.

    The source's `environment` is a file with `prompt`, `chosen` and `rejected`, or a task that has
    preferences. Evaluations ask the prompts of the task, or those of `held_out`. Frames are pairs.
    """

    title = "DPO"
    pacing = "offline"
    configs: ClassVar[dict[str, type[Any]]] = {**TextAlgorithm.configs, "trainer": DPOConfig}

    def train(self, run: Run, *, goal: Goal, seed: int = 1) -> Outcome:
        """Train on batches of pairs; see `Algorithm`."""
        source = self.parts.source
        parts = self.make_parts(run, seed)
        draw = pairs_of(source, parts.model)
        rounds = None
        asked_of = source.held_out or source.environment
        if source.held_out is not None or not asked_of.endswith(SUFFIXES):
            asked = replace(source, environment=asked_of, program=None, external=False)
            _, rounds = self.players(run, parts, asked, load_task(asked), seed)
        trainer = PreferenceTrainer(
            parts.module,
            parts.queue,
            self.config,
            seed=seed,
            model=parts.published,
            directory=run.experiment.checkpoints,
        )
        pairs = DrawnSource(
            lambda count, rng: pack_pairs(draw(count, rng)),
            parts.queue,
            self.config.batch_size,
            trainer,
            seed,
        )
        return self.conduct(run, parts, trainer, pairs, rounds, goal, seed)
