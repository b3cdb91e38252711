"""Target networks: how they are made, and that they are part of a trainer's checkpoints."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

from torch import nn

from bray_algo.networks.noisy import NoisyLinear
from bray_trainer.hooks import TrainerHooks

M = TypeVar("M", bound=nn.Module)


def make_target(network: M) -> M:
    """Return a copy of a network that follows it; it has no gradient.

    It judges as in evaluation, so a batch normalisation of yours goes by what was seen so far, and
    a dropout drops nothing: else the targets would depend on the rest of the batch. Only the noise
    of noisy layers stays (Fortunato et al. 2018, equation 12).
    """
    target = copy.deepcopy(network).requires_grad_(False)
    for part in target.modules():
        part.training = isinstance(part, NoisyLinear)
    return target


class KeepsTarget(TrainerHooks):
    """A trainer whose checkpoints hold `target`, the networks that its constructor copies."""

    target: Any

    def state_dict(self) -> dict[str, Any]:
        """Return the target networks' weights."""
        return {**super().state_dict(), "target": self.target.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore them."""
        super().load_state_dict(state)
        self.target.load_state_dict(state["target"])
