"""GRPO: several answers to each prompt → their rewards compared → a clipped step on the tokens.

Shao et al. 2024, "DeepSeekMath: pushing the limits of mathematical reasoning in open language
models". Its relatives are settings of `trainer.variant`: Dr. GRPO, RLOO, REINFORCE++, DAPO, GSPO,
CISPO, and PPO, which learns values in place of comparing. The papers are named where the
mathematics is, in `bray_algo.tokens`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from bray.goal import Goal, Outcome
from bray.run import Run
from bray.text.config import TextSourceConfig
from bray.text.policy_gradient_config import VARIANTS, GRPOConfig
from bray.text.samplers.players import check_samplers
from bray.text.task_loading import demonstrations_of, load_task
from bray.text.text_algorithm import TextAlgorithm
from bray.text.text_source import TextSource
from bray.text.trainers.policy_gradient_trainer import PolicyGradientTrainer
from bray.text.trainers.value_policy_trainer import ValuePolicyTrainer


class GRPO(TextAlgorithm[GRPOConfig]):
    """A language model answers each prompt several times, and learns from what did better.

    Frames are samples: answers, sessions, and demonstrations of the supervised phase.
    """

    title = "GRPO"
    configs: ClassVar[dict[str, type[Any]]] = {**TextAlgorithm.configs, "trainer": GRPOConfig}

    @classmethod
    def variant_defaults(cls, variant: str, task: str) -> Mapping[str, Any]:
        """Return what the paper of a variant sets."""
        return {f"trainer.{name}": value for name, value in VARIANTS.get(variant, {}).items()}

    def check(self) -> None:
        """Refuse settings without a model, and programs that the samplers cannot share."""
        super().check()
        check_samplers(self.parts.source, self.parts.actor.num_workers)

    def train(self, run: Run, *, goal: Goal, seed: int = 1) -> Outcome:
        """Sample and train in turns, or at once; see `Algorithm`."""
        config, agent = self.config, self.parts.agent
        asked: TextSourceConfig = self.parts.source
        task = load_task(asked) if asked.environment else None
        parts = self.make_parts(run, seed)
        plays, rounds = self.players(run, parts, asked, task, seed)
        made = ValuePolicyTrainer if config.baseline == "value" else PolicyGradientTrainer
        trainer = made(
            parts.module,
            parts.queue,
            config,
            longest_answer=agent.max_tokens,
            temperature=agent.temperature,
            seed=seed,
            model=parts.published,
            directory=run.experiment.checkpoints,
        )
        source = TextSource(
            plays,
            parts.queue,
            config,
            trainer,
            demonstrate=demonstrations_of(asked, task, parts.model),
            version=lambda: parts.published.version,
            longest_answer=agent.max_tokens,
            seed=seed,
        )
        return self.conduct(run, parts, trainer, source, rounds, goal, seed)
