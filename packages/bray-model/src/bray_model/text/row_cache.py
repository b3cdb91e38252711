"""Keys and values of the rows that are being decoded, in one block of memory a layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch


class LayerShape(NamedTuple):
    """Shape of one token's keys and values in one layer."""

    num_key_heads: int
    key_size: int
    num_value_heads: int
    value_size: int

    @property
    def width(self) -> int:
        """Numbers of one token."""
        return self.num_key_heads * self.key_size + self.num_value_heads * self.value_size


class RowCache:
    """Memory `[rows, heads, length, size]` of each layer, where rows `0 .. n-1` are the live ones.

    A head's tokens lie side by side: attention, which reads them all for one new token, takes half
    as long as where the heads of a token do. Rows and length grow by reallocation, within a bound
    on their product.

    Args:
        shapes: One token's shape in each layer.
        dtype: Type of the numbers.
        device: Where they lie.
        limit_bytes: Largest memory of all layers together.
    """

    def __init__(
        self,
        shapes: Sequence[LayerShape],
        dtype: torch.dtype,
        device: torch.device,
        limit_bytes: int,
    ) -> None:
        self.shapes = tuple(shapes)
        self.dtype = dtype
        self.device = device
        self.token_bytes = sum(shape.width for shape in shapes) * dtype.itemsize
        """Bytes of one token."""
        self.limit_tokens = limit_bytes // max(1, self.token_bytes)
        """Largest product of rows and length."""
        self.lends = True
        self.num_rows = 0
        """Rows that there is memory for."""
        self.length = 0
        """Tokens a row that there is memory for."""
        self.keys: list[torch.Tensor] = []
        """`[rows, heads, length, size]` of each layer."""
        self.values: list[torch.Tensor] = []
        """`[rows, heads, length, size]` of each layer."""
        self.memory: list[torch.Tensor] = []
        """Memory of each layer, `[N]`: its keys, then its values."""

    @property
    def blocks(self) -> list[torch.Tensor]:
        """The keys of all layers, and then the values."""
        return [*self.keys, *self.values]

    @property
    def nbytes(self) -> int:
        """Bytes that are held now."""
        return self.num_rows * self.length * self.token_bytes

    @property
    def limit_bytes(self) -> int:
        """Largest number of bytes that are held."""
        return self.limit_tokens * self.token_bytes

    def fits(self, num_rows: int, length: int) -> bool:
        """Return whether so many rows of such a length are within the limit."""
        return num_rows * length <= self.limit_tokens

    def resize(self, num_rows: int, length: int, live_rows: int, live_length: int) -> None:
        """Reallocate, keeping the first `live_length` tokens of the first `live_rows` rows."""
        keep_rows = min(live_rows, num_rows, self.num_rows)
        keep_length = min(live_length, length, self.length)
        old, self.keys, self.values, self.memory = [self.keys, self.values], [], [], []
        for layer, shape in enumerate(self.shapes):
            key_sizes = num_rows, shape.num_key_heads, length, shape.key_size
            value_sizes = num_rows, shape.num_value_heads, length, shape.value_size
            middle, end = math.prod(key_sizes), math.prod(key_sizes) + math.prod(value_sizes)
            memory = torch.empty(end, dtype=self.dtype, device=self.device)
            blocks = memory[:middle].view(key_sizes), memory[middle:].view(value_sizes)
            for before, block in zip(old, blocks, strict=True):
                if keep_rows and keep_length:
                    block[:keep_rows, :, :keep_length] = before[layer][:keep_rows, :, :keep_length]
                    before[layer] = torch.empty(0)  # frees a layer before the next is made
                # What is masked out is multiplied by 0, which NaN would survive.
                block[:keep_rows, :, keep_length:] = 0
                block[keep_rows:] = 0
            self.keys.append(blocks[0])
            self.values.append(blocks[1])
            self.memory.append(memory)
        self.num_rows, self.length = num_rows, length

    @torch.inference_mode()
    def copy(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """Copy the first `length` tokens of rows to other rows."""
        if not sources or not length:
            return
        if len(sources) == 1:
            source, target = sources[0], targets[0]
            for block in self.blocks:
                block[target, :, :length] = block[source, :, :length]
            return
        source_index = torch.tensor(sources, device=self.device)
        target_index = torch.tensor(targets, device=self.device)
        for block in self.blocks:
            block[target_index, :, :length] = block[source_index, :, :length]

    def take(self, row: int, length: int) -> list[torch.Tensor]:
        """Return a copy of the first `length` tokens of a row, `[heads, length, size]` each."""
        return [block[row, :, :length].clone() for block in self.blocks]

    def put(self, row: int, taken: Sequence[torch.Tensor]) -> None:
        """Write what `take` gave to the beginning of a row."""
        for block, tokens in zip(self.blocks, taken, strict=True):
            block[row, :, : tokens.shape[1]] = tokens

    def write(
        self,
        layer: int,
        rows: torch.Tensor,
        positions: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> None:
        """Write tokens: rows and positions `[N]`, keys and values `[N, heads, size]`."""
        self.keys[layer][rows, :, positions] = keys
        self.values[layer][rows, :, positions] = values

    def free(self) -> None:
        """Let the memory go."""
        self.keys, self.values, self.memory = [], [], []
        self.num_rows = self.length = 0
