"""A trunk that looks at all pairs of what it sees."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bray_core.settings.ranges import PositiveInt
from bray_core.spaces import LeafSpace, Spaces


@dataclass(frozen=True, kw_only=True, slots=True)
class PairsConfig:
    """Settings of the trunk."""

    width: PositiveInt = 64
    """Number of features. 16 to 512."""


class PairsTrunk(nn.Module):
    """Outer products of the observation, then one layer."""

    Config = PairsConfig

    def __init__(self, spaces: Spaces, settings: PairsConfig) -> None:
        super().__init__()
        assert isinstance(spaces.observation, LeafSpace)
        (size,) = spaces.observation.shape
        self.feature_size = settings.width
        self.layer = nn.Linear(size + size * size, settings.width)

    def forward(self, seen: Tensor) -> Tensor:
        """Map observations `[B, D]` to features `[B, F]`."""
        x = seen.float()
        pairs = (x.unsqueeze(-1) * x.unsqueeze(-2)).flatten(-2)
        return torch.relu(self.layer(torch.cat([x, pairs], -1)))
