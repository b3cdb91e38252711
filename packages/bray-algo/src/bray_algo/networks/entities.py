"""Sets of entities to one vector: pooling over those that are present.

An absent entity may hold anything, be it NaN. A set without anybody gives zeros.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bray_algo.networks.attention import Attention, check_present


def masked_sum(entities: Tensor, present: Tensor) -> Tensor:
    """Return the sum `[…, D]` over the present of entities `[…, N, D]`; `present` bool `[…, N]`.

    Zaheer et al. 2017, "Deep sets".

    Raises:
        ValueError: shapes do not agree; every function of this file refuses that.
    """
    check_present(present, entities)
    return entities.masked_fill(~present.unsqueeze(-1), 0.0).sum(-2)


def masked_mean(entities: Tensor, present: Tensor) -> Tensor:
    """Return the mean `[…, D]` over the present of entities `[…, N, D]`."""
    total = masked_sum(entities, present)
    return total / present.sum(-1, keepdim=True).clamp(min=1).to(total.dtype)


def masked_max(entities: Tensor, present: Tensor) -> Tensor:
    """Return the greatest `[…, D]` over the present of entities `[…, N, D]`."""
    check_present(present, entities)
    lowest = torch.finfo(entities.dtype).min
    greatest = entities.masked_fill(~present.unsqueeze(-1), lowest).amax(-2)
    return greatest.masked_fill(~present.any(-1, keepdim=True), 0.0)


class AttentionPool(nn.Module):
    """Learned queries that attend to the set (Lee et al. 2019, "Set Transformer", §3.2).

    Args:
        size: Features D of an entity.
        num_heads: Number of heads, which divides D.
        num_queries: Number Q of queries, each of which may look for something else; usually 1 to 4.

    Raises:
        ValueError: no query, or the heads do not divide the size.

    Examples:
        >>> pool = AttentionPool(8, num_heads=2, num_queries=3)
        >>> pool(torch.zeros(2, 5, 8), torch.ones(2, 5, dtype=torch.bool)).shape
        torch.Size([2, 24])
    """

    def __init__(self, size: int, num_heads: int = 4, num_queries: int = 1) -> None:
        super().__init__()
        if num_queries < 1:
            raise ValueError(f"num_queries: expected a positive number, got {num_queries}")
        self.attention = Attention(size, num_heads)
        self.queries = nn.Parameter(torch.randn(num_queries, size) / size**0.5)

    def forward(self, entities: Tensor, present: Tensor) -> Tensor:
        """Map entities `[B, N, D]`, `present` bool `[B, N]`, to `[B, Q D]`."""
        check_present(present, entities)
        entities = entities.masked_fill(~present.unsqueeze(-1), 0.0)
        queries = self.queries.expand(entities.shape[0], -1, -1)
        pooled: Tensor = self.attention(queries, entities, present)
        return pooled.flatten(1)
