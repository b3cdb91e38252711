"""What A2C, IMPALA and APPO share: their settings, and the policy's view of recorded segments.

PPO has settings of its own, and shares the trainer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from bray.training.compute import ComputeConfig
from bray.training.exploration.curiosity import Curiosity
from bray.training.on_policy_trainer import OnPolicyTrainer
from bray.training.play_gap import PlayGap
from bray_algo.distributions import outputs as distribution
from bray_core.errors import ConfigError
from bray_core.layout import Packed
from bray_core.settings.ranges import (
    Fraction,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    check_fields,
)
from bray_core.settings.schedule import ScheduledNonNegativeFloat, ScheduledPositiveFloat
from bray_core.spaces import Spaces
from bray_trainer.sequences import Batch, time_major, unroll, valid_steps


@dataclass(frozen=True, kw_only=True, slots=True)
class ActorCriticConfig(ComputeConfig):
    """What A2C, IMPALA and APPO can be told; each adds its own."""

    learning_rate: ScheduledPositiveFloat = 1e-3
    """Adam's step size. Too large and the return collapses now and then; too small and it creeps.
    1e-4 to 3e-3."""
    gamma: Fraction = 0.99
    """Discount per step. A reward t steps away counts γ^t: about 1 / (1 - γ) steps are looked
    ahead. 0.9 where all is decided soon, 0.999 where it takes thousands of steps."""
    value_coefficient: NonNegativeFloat = 0.5
    """Weight of the value loss beside the policy's. 0.25 to 1."""
    entropy_coefficient: ScheduledNonNegativeFloat = 0.01
    """Weight of the entropy bonus. Too small and the policy settles before it has tried much; too
    large and it stays random. 0 to 0.05."""
    max_grad_norm: PositiveFloat = 0.5
    """Gradient norm above which gradients are scaled down, so that one strange batch cannot undo
    much. 0.5 to 40."""
    curiosity: NonNegativeFloat = 0.0
    """Weight of a bonus beside the reward for what was rarely seen (random network distillation):
    for tasks where chance never reaches a reward. A step's bonus begins near 0.1 and falls while
    all becomes known. Too large and the policy puts off the end of an episode, which ends the bonus
    too; too small and a value function learns nothing from it. 0 is none; 0.01 to 0.1."""
    checkpoint_every: PositiveInt = 500
    """Replays between two checkpoints: what a crash costs at most."""

    def __post_init__(self) -> None:
        check_fields(self)


class Columns(NamedTuple):
    """What the current policy says of recorded steps, `[T, B]` each, and of what followed them."""

    log_prob: Tensor
    entropy: Tensor
    value: Tensor
    final_value: Tensor
    """`[B]`, without gradient."""


class ActorCriticTrainer(OnPolicyTrainer):
    """One replay of segments is one step, unless an algorithm's `handle` says otherwise.

    Args:
        args: arguments of `OnPolicyTrainer`, with `kwargs`.
        part: the algorithm's settings.
        seed: seed of what is drawn.
        spaces: what the policy sees and may do; only `part.curiosity` needs it.
        kwargs: see `args`.

    Raises:
        ConfigError: `part.curiosity` is set, and `spaces` is not.
    """

    def __init__(
        self, *args: Any, part: Any, seed: int, spaces: Spaces | None = None, **kwargs: Any
    ) -> None:
        self.gap = PlayGap()
        super().__init__(*args, part=part, seed=seed, **kwargs)
        self.curiosity = self._make_curiosity(spaces, seed) if part.curiosity else None
        """What rewards are raised by, where a setting says so."""

    def _make_curiosity(self, spaces: Spaces | None, seed: int) -> Curiosity:
        if spaces is None:
            raise ConfigError("trainer.curiosity: expected spaces= for the trainer, or 0")
        return Curiosity(
            spaces,
            weight=self.part.curiosity,
            gamma=self.part.gamma,
            seed=seed,
            device=self.device,
        )

    def handle(self, replay: Packed) -> Iterator[Batch]:
        """Yield the segments, time-major."""
        yield self.segments(replay)

    def segments(self, replay: Packed) -> Batch:
        """Return a replay's segments, time-major, with what `columns` looks at."""
        segments = time_major(replay, self.device)
        self.gap.begin(segments, self.policy_version)
        self.see(segments, valid_steps(segments))
        self.scale_reward(segments)
        if self.curiosity is not None:
            self.curiosity.add_bonus(segments)
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

    def state_dict(self) -> dict[str, Any]:
        """Return curiosity's networks beside what all trainers keep."""
        state = super().state_dict()
        if self.curiosity is not None:
            state["curiosity"] = self.curiosity.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore them; a trial that had none begins them anew."""
        super().load_state_dict(state)
        if self.curiosity is not None and "curiosity" in state:
            self.curiosity.load_state_dict(state["curiosity"])
