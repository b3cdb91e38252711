"""PPO: each policy version plays, the trainer passes over what it played, the next one follows.

Schulman et al. 2017, "Proximal policy optimization algorithms", Algorithm 1. On-policy and in
lockstep. A policy with memory is trained on whole segments, from the state in which each began.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from bray.sources import atari
from bray.training.actor_critic import ActorCriticTrainer
from bray.training.annealing import AnnealsLearningRate, check_annealing
from bray.training.by_hand.choice_ppo import BehindModule
from bray.training.by_hand.perceptron_ppo import PerceptronPPO, fits
from bray.training.compute import ComputeConfig
from bray.training.generator import KeepsGenerator
from bray.training.minibatches import (
    epochs_at_once,
    even_sizes,
    minibatches,
    shuffled,
    shuffled_order,
)
from bray.training.on_policy import OnPolicy
from bray_actor.spaces import ATARI
from bray_algo import gae
from bray_algo.distributions import outputs as distribution
from bray_algo.gradients import ppo as ppo_gradients
from bray_algo.losses.reductions import standardised
from bray_core import metrics
from bray_core.layout import Packed
from bray_core.settings.ranges import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    check_fields,
)
from bray_core.settings.schedule import (
    Schedule,
    ScheduledFraction,
    ScheduledNonNegativeFloat,
    ScheduledPositiveFloat,
)
from bray_trainer import Trainer
from bray_trainer.frame_stacks import as_tensors
from bray_trainer.sequences import (
    IS_CURRENT,
    Batch,
    final_value,
    in_order,
    select_segments,
    select_steps,
    unroll,
    valid_steps,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PPOConfig(ComputeConfig):
    """PPO's hyperparameters."""

    steps_per_replay: PositiveInt = 2048
    """Environment steps that one policy version collects and is trained on. More of them make a
    steadier estimate and fewer updates; fewer learn sooner from less. 512 to 32,768: large where
    returns vary much."""
    epochs: PositiveInt = 10
    """Passes over each replay. More learn more from it, until the clip holds the policy back and
    the last passes teach nothing. 3 to 20."""
    minibatch_size: PositiveInt = 256
    """Steps of one optimiser step, at most; with memory, of whole segments that have so many. Small
    ones are noisy, large ones are few. 32 to 4,096."""
    learning_rate: ScheduledPositiveFloat = 3e-4
    """Adam's step size at the start. Too large and the return collapses now and then; too small and
    it creeps. 1e-4 to 1e-3."""
    gamma: Fraction = 0.99
    """Discount per step. A reward t steps away counts γ^t: about 1 / (1 - γ) steps are looked
    ahead. 0.9 where all is decided soon, 0.999 where it takes thousands of steps."""
    gae_lambda: Fraction = 0.95
    """λ of generalised advantage estimation. 0 trusts the value function alone (biased while it is
    wrong), 1 the returns alone (noisy). 0.9 to 0.99."""
    clip: ScheduledFraction = 0.2
    """Clip range ε of the probability ratio. Larger steps learn faster and collapse sooner. 0.1 to
    0.3."""
    value_coefficient: NonNegativeFloat = 0.5
    """Weight of the value loss beside the policy's. 0.25 to 1."""
    entropy_coefficient: ScheduledNonNegativeFloat | None = None
    """Weight of the entropy bonus. Too small and the policy settles before it has tried much; too
    large and it stays random. 0 to 0.05. None: 0.01 for choices, 0 for reals alone, whose standard
    deviation it would only widen."""
    max_grad_norm: PositiveFloat = 0.5
    """Gradient norm above which gradients are scaled down, so that one strange batch cannot undo
    much. 0.5 to 40."""
    curiosity: NonNegativeFloat = 0.0
    """Weight of a bonus beside the reward for what was rarely seen (random network distillation):
    for tasks where chance never reaches a reward. A step's bonus begins near 0.1 and falls while
    all becomes known. Too large and the policy puts off the end of an episode, which ends the bonus
    too; too small and a value function learns nothing from it. 0 is none; 0.01 to 0.1."""
    target_kl: PositiveFloat | None = None
    """KL divergence from the policy that acted, of which 1.5 times ends the passes over a replay:
    it keeps a large learning rate from leaving that policy far behind. Small ones waste what was
    played, large ones never bind. 0.01 to 0.05; None passes over all."""
    anneal_frames: NonNegativeInt = 0
    """Frames over which the learning rate falls linearly to a tenth, which steadies the end of a
    run; 0 keeps it constant."""
    checkpoint_every: PositiveInt = 20
    """Replays between two checkpoints: what a crash costs at most."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_annealing(self)


class PPOTrainer(KeepsGenerator, AnnealsLearningRate, ActorCriticTrainer):
    """Trains a policy of `bray.policies.networks` in several passes over each replay."""

    part: PPOConfig

    def __init__(self, *args: Any, seed: int, **kwargs: Any) -> None:
        self._approx_kl: Tensor | float = 0.0
        self.generator = torch.Generator().manual_seed(seed)
        super().__init__(*args, seed=seed, **kwargs)
        self._behind_module = BehindModule()
        self._is_own = type(self).loss is PPOTrainer.loss
        is_by_hand = self._is_own and fits(self.module)
        self._by_hand = PerceptronPPO(self.module, self.optimizer) if is_by_hand else None

    def handle(self, replay: Packed) -> Iterator[Batch]:
        """Yield shuffled minibatches of one replay, its advantages computed once.

        They are of steps, whose advantages are normalised within the minibatch; with memory, of
        whole segments. Each is in one minibatch of an epoch. The
        first whose policy is too far from the one that acted is the last.
        """
        segments = self._with_advantages(in_order(replay))
        has_memory = "initial_state" in segments
        for batch in self._of_segments(segments) if has_memory else self._of_steps(segments):
            yield batch
            if self._is_too_far():
                return

    def _of_segments(self, segments: Batch) -> Iterator[Batch]:
        steps = segments["length"].tolist()
        for _ in range(self.part.epochs):
            order = torch.randperm(len(steps), generator=self.generator)
            for index in minibatches(order, steps, self.part.minibatch_size):
                yield select_segments(segments, index)

    def _of_steps(self, segments: Batch) -> Iterator[Batch]:
        rows = _flat(segments, "observation")
        advantage, size = rows.pop("advantage"), self.part.minibatch_size
        # Passes that may end early draw an order when they need it.
        ends_early = self.part.target_kl is not None
        at_once = 1 if ends_early else epochs_at_once(rows, self.part.epochs)
        for begin in range(0, self.part.epochs, at_once):
            epochs = range(begin, min(begin + at_once, self.part.epochs))
            count = len(advantage)
            orders = [shuffled_order(count, self.generator, self.device) for _ in epochs]
            scaled = _standardised_parts(advantage, orders, size)
            for batch, part in zip(shuffled(rows, orders, size), scaled, strict=True):
                batch["advantage"] = part
                yield batch

    def _is_too_far(self) -> bool:
        target = self.part.target_kl
        return target is not None and float(self._approx_kl) > 1.5 * target

    def _with_advantages(self, replay: Packed) -> Batch:
        """Return a replay's segments, time-major, with `advantage` and `return`."""
        segments = self.segments(replay)
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

    def loss(self, batch: Batch, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return PPO's loss over one minibatch of `handle`, advantages normalised within it."""
        if "initial_state" in batch:
            outputs = select_steps(unroll(self.module, batch)[0], valid_steps(batch))
            batch = _flat(batch)
            batch["advantage"] = standardised(batch["advantage"])
        else:
            outputs = self.module(as_tensors(batch["observation"]))
            self._behind_module.see(outputs)
        log_prob, entropy = distribution.log_prob_and_entropy(outputs, batch["action"])
        loss, terms = ppo_gradients.loss(
            self.gap.see(log_prob, batch),
            entropy,
            outputs["value"],
            batch["log_prob"],
            batch["advantage"],
            batch["return"],
            **self._coefficients("logits" in outputs),
        )
        self._approx_kl = terms["approx_kl"]
        return loss, terms

    def gradients(self, batch: Batch, step: int) -> tuple[Tensor, dict[str, Tensor]] | None:
        """Return the same with all gradients: by hand for the default perceptrons.

        Of another policy of one choice, what lies behind the module is found by hand; autograd
        goes through the module alone.
        """
        if not self._is_own or "initial_state" in batch:
            return None
        if self._by_hand is not None:
            settings = self._coefficients(bool(self.module.actions.sizes))
            found = self._by_hand(batch, **settings)
        else:
            found = self._behind_module(self.module, batch, **self._coefficients(True))
        if found is None:
            return None
        log_prob, (loss, terms, *_) = found
        self.gap.see(log_prob, batch)
        self._approx_kl = terms["approx_kl"]
        return loss, terms

    def is_repeatable(self, batch: Batch) -> bool:
        """Return that it is, but for memory, schedules, `target_kl`, and what `PlayGap` looks at.

        With `target_kl` each call of `loss` leaves the divergence that `handle` asks for.
        """
        is_plain = self._is_own and "initial_state" not in batch and not self.gap.is_due
        numbers = (self.part.clip, self.part.entropy_coefficient)
        is_constant = not any(isinstance(number, Schedule) for number in numbers)
        return is_plain and is_constant and self.part.target_kl is None

    def _coefficients(self, has_choices: bool) -> dict[str, float]:
        """Return the clip and the weights; of the entropy bonus that for choices if unsaid."""
        given = self.part.entropy_coefficient
        unsaid = 0.01 if has_choices else 0.0
        return {
            "clip": self.now(self.part.clip),
            "value_coefficient": self.part.value_coefficient,
            "entropy_coefficient": unsaid if given is None else self.now(given),
        }


def _standardised_parts(advantage: Tensor, orders: list[Tensor], size: int) -> Sequence[Tensor]:
    """Return advantages `[N]` in the order of each epoch, normalised within each minibatch."""
    sizes = even_sizes(len(advantage), size) * len(orders)
    shuffled = advantage[torch.cat(orders)]
    if len(set(sizes)) == 1:  # at once, for a part takes as long as all of them
        return standardised(shuffled.view(len(sizes), -1), is_by_row=True).unbind()
    return [standardised(part) for part in torch.split(shuffled, sizes)]


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


class PPO(OnPolicy[PPOConfig]):
    """Each policy version plays one replay, which the trainer passes over a few times."""

    title = "PPO"
    pacing = "lockstep"
    configs: ClassVar[dict[str, type[Any]]] = {**OnPolicy.configs, "trainer": PPOConfig}
    trainer: ClassVar[Callable[..., Trainer]] = PPOTrainer

    @classmethod
    def defaults(cls, task: str) -> Mapping[str, Any]:
        """Return settings for Atari games; other tasks have those of the configs."""
        if not task.startswith(ATARI):
            return {"agent.segment_length": 32}
        games = {
            "agent.segment_length": 32,
            "trainer.steps_per_replay": atari.shared(2048),
            "trainer.epochs": 3,
            "trainer.minibatch_size": 256,
            "trainer.learning_rate": 2.5e-4,
            "trainer.clip": 0.1,
            "trainer.entropy_coefficient": 0.01,
        }
        return {**atari.settings(), **games}

    @property
    def batch_steps(self) -> int:
        """Environment steps of a replay."""
        return self.config.steps_per_replay
