"""What A2C, IMPALA and APPO share: their settings, and the policy's view of recorded segments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from bray.checks import fraction, layers, not_negative, positive
from bray.training.compute import ComputeConfig
from bray.training.play_gap import PlayGap
from bray_algo.distributions import outputs as distribution
from bray_core.layout import Packed
from bray_core.protocols import ModelProtocol
from bray_trainer import Trainer, TrainerConfig
from bray_trainer.sequences import Batch, time_major, unroll


@dataclass(frozen=True, kw_only=True, slots=True)
class ActorCriticConfig(ComputeConfig):
    """Of the algorithm and of what plays for it; a recipe adds its own."""

    hidden: tuple[int, ...] = (64, 64)
    """Units of the policy's hidden layers, and of the value function's."""
    memory_size: int = 0
    """Units of an LSTM between these and the heads; 0 is none."""
    learning_rate: float = 1e-3
    """Adam's."""
    gamma: float = 0.99
    """Discount per step."""
    value_coefficient: float = 0.5
    """Weight of the value loss."""
    entropy_coefficient: float = 0.01
    """Weight of the entropy bonus."""
    max_grad_norm: float = 0.5
    """Gradient norm above which gradients are scaled down."""
    segment_length: int = 16
    """Steps T that each environment of a worker takes for one replay; 5 to 64."""
    num_envs: int = 16
    """Environments side by side, of one worker."""
    num_workers: int = 1
    """That play, on Ray."""
    checkpoint_every: int = 500
    """Replays between two checkpoints."""

    def __post_init__(self) -> None:
        ComputeConfig.__post_init__(self)
        layers(hidden=self.hidden)
        not_negative(
            memory_size=self.memory_size,
            value_coefficient=self.value_coefficient,
            entropy_coefficient=self.entropy_coefficient,
        )
        positive(
            learning_rate=self.learning_rate,
            max_grad_norm=self.max_grad_norm,
            segment_length=self.segment_length,
            num_envs=self.num_envs,
            num_workers=self.num_workers,
            checkpoint_every=self.checkpoint_every,
        )
        fraction(gamma=self.gamma)


class Columns(NamedTuple):
    """What the current policy says of recorded steps, `[T, B]` each, and of what followed them."""

    log_prob: Tensor
    entropy: Tensor
    value: Tensor
    final_value: Tensor
    """`[B]`, without gradient."""


class ActorCriticTrainer(Trainer):
    """One replay of segments is one step, unless a recipe's `handle` says otherwise."""

    def __init__(
        self,
        module: nn.Module,
        buffer: Any,
        *,
        model: ModelProtocol,
        part: Any,
        seed: int,
        directory: Path | None = None,
    ) -> None:
        self.part = part
        self.gap = PlayGap()
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
        """Yield the segments, time-major."""
        yield self.segments(replay)

    def segments(self, replay: Packed) -> Batch:
        """Return a replay's segments, time-major, with what `columns` looks at."""
        segments = time_major(replay, self.device)
        self.gap.begin(segments, self.policy_version)
        return segments

    def columns(self, segments: Batch) -> Columns:
        """Return what the current policy says of segments of `handle`."""
        outputs, last = unroll(self.module, segments)
        log_prob, entropy = distribution.log_prob_and_entropy(outputs, segments["action"])
        return Columns(
            self.gap.see(log_prob, segments),
            entropy,
            outputs["value"],
            last.detach(),
        )
