"""The level of a quantile as features: what makes a network an implicit quantile network."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class LevelEmbedding(nn.Module):
    """Joins features of an observation with the levels at which quantiles are asked for.

    Dabney et al. 2018, "Implicit quantile networks for distributional reinforcement learning",
    equation 4: ψ(x) ⊙ φ(τ), φ_j(τ) = ReLU(Σ_i cos(π i τ) w_ij + b_j).

    Args:
        num_features: Number F of features ψ.
        num_cosines: Number of cosines of a level, 64 in the paper. Fewer tell levels apart less.

    Raises:
        ValueError: a number is not positive.

    Examples:
        >>> LevelEmbedding(8)(torch.zeros(2, 8), torch.full((2, 5), 0.5)).shape
        torch.Size([2, 5, 8])
    """

    frequencies: Tensor

    def __init__(self, num_features: int, num_cosines: int = 64) -> None:
        super().__init__()
        if min(num_features, num_cosines) < 1:
            raise ValueError(
                "num_features, num_cosines: expected positive numbers, "
                f"got {num_features}, {num_cosines}"
            )
        self.layer = nn.Linear(num_cosines, num_features)
        self.register_buffer(
            "frequencies", math.pi * torch.arange(num_cosines).float(), persistent=False
        )

    def forward(self, features: Tensor, levels: Tensor) -> Tensor:
        """Map features `[N, F]` and levels `[N, K]`, 0 to 1, to features `[N, K, F]`."""
        cosines = torch.cos(levels.unsqueeze(-1) * self.frequencies)
        return features.unsqueeze(1) * torch.relu(self.layer(cosines))
