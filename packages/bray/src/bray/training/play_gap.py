"""How far the log-probabilities of play are from the trainer's own, for one and the same policy.

Players may compute in another precision or by another engine (bfloat16, ONNX, int8) than the
trainer. What that changes is seen before the first step of the optimiser on a replay, in steps of
the version that the trainer's weights still are; afterwards the policies differ as well.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bray_core import metrics
from bray_trainer.sequences import IS_CURRENT, Batch, valid_steps


class PlayGap:
    """Records the gap once a replay, of its first minibatch, from a forward that is made anyway.

    `trainer/log_prob_gap` is the mean of |log π(a) − recorded log π(a)| over the minibatch's steps
    of the current version, `trainer/log_prob_gap_max` the greatest. A minibatch without such steps
    records nothing: players of an asynchronous run are mostly some versions behind.
    """

    def __init__(self) -> None:
        self.is_due = False
        """Whether the next minibatch is looked at."""

    def begin(self, segments: Batch, version: int | None) -> None:
        """Mark the steps of a replay that were acted by the current version.

        Args:
            segments: what `sequences.time_major` returns; they get a leaf `is_current [T, B]`.
            version: `Trainer.policy_version`; None marks nothing.
        """
        self.is_due = version is not None and "policy_version" in segments
        if self.is_due:
            acted_by = segments["policy_version"].T  # [B, T] -> [T, B]
            segments[IS_CURRENT] = acted_by.eq(version) & valid_steps(segments)

    def see(self, log_prob: Tensor, batch: Batch) -> Tensor:
        """Record the gap, if this is the replay's first minibatch; return `log_prob` as it is.

        Args:
            log_prob: log-probabilities of the actions taken, by the trainer's weights.
            batch: `log_prob` as recorded, and maybe `is_current`, all of one shape.
        """
        if self.is_due and IS_CURRENT in batch:
            gap = (log_prob.detach() - batch["log_prob"])[batch[IS_CURRENT]].abs()
            if gap.numel():
                mean, most = torch.stack([gap.mean(), gap.max()]).tolist()  # one wait for a GPU
                metrics.record("trainer/log_prob_gap", mean)
                metrics.record("trainer/log_prob_gap_max", most)
        self.is_due = False
        return log_prob
