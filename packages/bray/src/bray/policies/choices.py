"""A policy of one choice, drawn by its logits, and critics that judge every choice at once."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bray.policies.config import TrunkConfig
from bray.policies.flattening import split_mask
from bray.policies.normalisation import ObservationNorm
from bray.policies.trunks import make_network
from bray_algo.distributions import categorical
from bray_core.nested import Nested
from bray_core.spaces import Spaces


class ChoicePolicy(nn.Module):
    """A categorical policy over the actions that are allowed.

    Args:
        spaces: what the policy sees and may do.
        num_actions: number A of actions.
        config: settings of the network.
    """

    def __init__(self, spaces: Spaces, num_actions: int, config: TrunkConfig) -> None:
        super().__init__()
        self._space = spaces.observation
        self.normalize = ObservationNorm(spaces, config)
        self.body = make_network(spaces, config, num_actions, nn.ReLU, output_gain=0.01)

    def allowed(self, observation: Nested) -> Tensor | None:
        """Return which actions may be taken, bool `[B, A]`; None where all may."""
        _, mask = split_mask(observation, self._space)
        if mask is None:
            return None
        flags = mask.bool()  # nothing is allowed in what follows a last step: then all is
        return flags | ~flags.any(-1, keepdim=True)

    def seen(self, observation: Nested) -> Nested:
        """Return what the networks read of observations: without mask, normalised."""
        return split_mask(self.normalize(observation), self._space)[0]

    def logits(self, observation: Nested) -> Tensor:
        """Return the logits `[B, A]`; those of actions that are not allowed are least."""
        logits: Tensor = self.body(self.seen(observation))
        allowed = self.allowed(observation)
        return logits if allowed is None else categorical.mask(logits, allowed)

    def forward(self, observation: Nested) -> dict[str, Tensor]:
        """Map observations to `logits [B, A]` and a `value` of 0."""
        logits = self.logits(observation)
        return {"logits": logits, "value": torch.zeros_like(logits[:, 0])}


class ChoiceCritics(nn.Module):
    """K networks that each estimate the values Q(s, a) of all actions.

    Args:
        spaces: what the policy sees and may do.
        num_actions: number A of actions.
        config: settings of each network.
        count: number K of critics. Two are usual; more estimate lower and cost more.
    """

    def __init__(
        self, spaces: Spaces, num_actions: int, config: TrunkConfig, count: int = 2
    ) -> None:
        super().__init__()
        # Values begin near 0: a bootstrap from large random ones takes long to recover.
        self.members = nn.ModuleList(
            make_network(spaces, config, num_actions, nn.ReLU, output_gain=0.01)
            for _ in range(count)
        )

    def forward(self, seen: Nested) -> Tensor:
        """Map observations `[B, …]`, without a mask, to values `[K, B, A]`."""
        return torch.stack([member(seen) for member in self.members])
