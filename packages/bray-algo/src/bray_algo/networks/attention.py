"""Attention over sets of which some members are absent, and the Transformer encoder made of it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from bray_algo.validation.tensors import check_tensor


class Attention(nn.Module):
    """Multi-head attention (Vaswani et al. 2017, §3.2) with a mask of who is there.

    Args:
        size: Features D of queries, keys and outputs.
        num_heads: Number of heads, which divides D; usually 2 to 8.

    Raises:
        ValueError: the heads do not divide the size.
    """

    def __init__(self, size: int, num_heads: int = 4) -> None:
        super().__init__()
        if num_heads < 1 or size < 1 or size % num_heads:
            raise ValueError(f"num_heads: expected a divisor of size={size}, got {num_heads}")
        self.num_heads = num_heads
        self.query = nn.Linear(size, size)
        self.key_value = nn.Linear(size, 2 * size)
        self.output = nn.Linear(size, size)
        for layer in (self.query, self.key_value, self.output):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, query: Tensor, keys: Tensor, present: Tensor) -> Tensor:
        """Return for each query `[B, M, D]` what it takes from the present keys `[B, N, D]`.

        `present` is bool `[B, N]`. Where nobody is present, the result is zero.

        Raises:
            ValueError: shapes do not agree.
        """
        check_present(present, keys)
        somebody = present.any(-1)[:, None, None]
        # A row that may look at nothing would be NaN: it looks at everything, and is then zeroed.
        visible = (present[:, None, None, :] | ~somebody[..., None]).expand(
            -1, 1, query.shape[1], -1
        )
        key, value = self.key_value(keys).chunk(2, -1)
        mixed = scaled_dot_product_attention(
            self._heads(self.query(query)), self._heads(key), self._heads(value), visible
        )
        output: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return output.masked_fill(~somebody, 0.0)

    def _heads(self, x: Tensor) -> Tensor:
        """[B, N, D] -> [B, heads, N, D / heads]."""
        return x.reshape(*x.shape[:2], self.num_heads, -1).transpose(1, 2)


class EntityTransformer(nn.Module):
    """A Transformer encoder over sets of entities, without positions: their order does not matter.

    Layers normalise before attention and perceptron (Xiong et al. 2020, "On layer normalization in
    the Transformer architecture"); a last normalisation follows.

    Args:
        input_size: Features of an entity.
        size: Features D of each output, usually 64 to 256.
        num_layers: Number of layers, each attention and a perceptron; usually 1 to 4. One lets
            entities see each other, two let them see what others see.
        num_heads: Number of heads, which divides D.
        hidden: Units of the perceptrons; None is 4 D.

    Raises:
        ValueError: a number is not positive, or the heads do not divide the size.

    Examples:
        >>> network = EntityTransformer(5, size=8, num_layers=1, num_heads=2)
        >>> network(torch.zeros(2, 7, 5), torch.ones(2, 7, dtype=torch.bool)).shape
        torch.Size([2, 7, 8])
    """

    def __init__(
        self,
        input_size: int,
        size: int = 128,
        num_layers: int = 2,
        num_heads: int = 4,
        hidden: int | None = None,
    ) -> None:
        super().__init__()
        hidden = 4 * size if hidden is None else hidden
        if min(input_size, num_layers, hidden) < 1:
            raise ValueError(
                "input_size, num_layers, hidden: expected positive numbers, "
                f"got {input_size}, {num_layers}, {hidden}"
            )
        self.entry = nn.Linear(input_size, size)
        self.layers = nn.ModuleList(_Layer(size, num_heads, hidden) for _ in range(num_layers))
        self.norm = nn.LayerNorm(size)

    def forward(self, entities: Tensor, present: Tensor) -> Tensor:
        """Map entities `[B, N, …]` of which some are `present`, bool `[B, N]`, to `[B, N, D]`.

        The absent may hold anything, be it NaN; their outputs are zero.

        Raises:
            ValueError: shapes do not agree.
        """
        check_present(present, entities)
        absent = ~present.unsqueeze(-1)
        x = self.entry(entities.masked_fill(absent, 0.0))
        for layer in self.layers:
            x = layer(x, present)
        output: Tensor = self.norm(x)
        return output.masked_fill(absent, 0.0)


class _Layer(nn.Module):
    def __init__(self, size: int, num_heads: int, hidden: int) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(size), nn.LayerNorm(size)
        self.attention = Attention(size, num_heads)
        self.mlp = nn.Sequential(nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, size))

    def forward(self, x: Tensor, present: Tensor) -> Tensor:
        normed = self.attention_norm(x)
        x = x + self.attention(normed, normed, present)
        output: Tensor = x + self.mlp(self.mlp_norm(x))
        return output


def check_present(present: Tensor, entities: Tensor) -> None:
    """Check that `present` is bool `[…, N]` for entities `[…, N, D]`.

    Raises:
        ValueError: it is not.
    """
    check_tensor("entities", entities)
    check_tensor("present", present)
    wanted = tuple(entities.shape[:-1])
    if entities.ndim < 2 or present.shape != wanted or present.dtype != torch.bool:
        raise ValueError(
            f"present: expected bool {wanted} for entities {tuple(entities.shape)}, "
            f"got {present.dtype} {tuple(present.shape)}"
        )
