"""Running statistics of what a trainer trains on: of its observations, and of its rewards.

Those of observations are buffers of the network, which take in a replay after its last step: until
then the network is the one that acted, and the first epoch's probability ratio is 1. Those of
rewards belong to the trainer: it takes the returns of a replay in first, and then divides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from torch import Tensor

from bray.policies.normalisation import ObservationNorm, find_norm
from bray.training.schedules.scheduled_trainer import FollowsSchedules
from bray_algo.networks.normalisation import Moments, RunningNorm, moments
from bray_trainer import Trainer
from bray_trainer.sequences import Batch, valid_steps

_MOST = 10.0
"""Bound of a divided reward on both sides: the deviation is not known yet when the first come."""


class NormalisingTrainer(FollowsSchedules, Trainer):
    """A trainer that keeps the statistics of observations and rewards, where settings want them.

    Args:
        normalize_reward: whether `scale_reward` divides rewards; else it leaves them as they are.
    """

    def __init__(self, *args: Any, normalize_reward: bool = False, **kwargs: Any) -> None:
        self.reward_scale = RunningNorm(()) if normalize_reward else None
        """Statistics of the rewards' discounted sums."""
        self._seen: list[list[Moments]] = []
        super().__init__(*args, **kwargs)

    @cached_property
    def observation_norm(self) -> ObservationNorm | None:
        """What normalises the observations of the network; None where nothing does."""
        return find_norm(self.module)

    def see(self, batch: Mapping[str, Any], valid: Tensor | None = None) -> None:
        """Note the observations of a replay, for `finish_replay`; each of them once.

        Args:
            batch: its `observation` has leaves `[…, *shape]`.
            valid: rows that count, bool `[…]`; None is all.
        """
        if self.observation_norm is not None:
            self._seen.append(self.observation_norm.moments_of(batch["observation"], valid))

    def finish_replay(self) -> None:
        """Let the statistics of observations take in what all ranks have seen of the replay."""
        seen, self._seen = self._seen, []
        if self.observation_norm is None:
            return
        for found in _of_all(self, seen):
            self.observation_norm.update_with(found)

    def scale_reward(self, batch: Batch) -> None:
        """Divide rewards by the running deviation of their discounted sums; their mean stays.

        Engstrom et al. 2020, "Implementation matters in deep policy gradients", §3. Called once a
        replay: all ranks exchange what they have.

        Args:
            batch: `reward` and `discounted_return`, of segments `[T, B]` with their `length`, or of
                transitions `[B]`.
        """
        scale = self.reward_scale
        if scale is None:
            return
        valid = valid_steps(batch) if "length" in batch else None
        found = [moments(batch["discounted_return"], 0, valid)]
        for (one,) in _of_all(self, [found]):
            scale.update_with(Moments(*(number.cpu() for number in one)))
        deviation = float((scale.variance + scale.epsilon).sqrt())
        batch["reward"] = (batch["reward"] / deviation).clamp(-_MOST, _MOST)

    def state_dict(self) -> dict[str, Any]:
        """Return the statistics of rewards; those of observations are saved with the network."""
        state = super().state_dict()
        if self.reward_scale is not None:
            state["reward_scale"] = self.reward_scale.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore them; a trial that had none begins them anew."""
        super().load_state_dict(state)
        if self.reward_scale is not None and "reward_scale" in state:
            self.reward_scale.load_state_dict(state["reward_scale"])


def _of_all(trainer: Trainer, seen: Sequence[list[Moments]]) -> list[list[Moments]]:
    """Return what all ranks have seen, in the same order on each: so all come to the same sums."""
    if trainer.ranks.size == 1:
        return list(seen)
    # As plain lists of tensors on the CPU, which is what ranks can exchange.
    own = [[[number.cpu() for number in found] for found in one] for one in seen]
    return [
        [Moments(*found) for found in one] for rank in trainer.ranks.gather(own) for one in rank
    ]
