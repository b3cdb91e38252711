"""The gated Transformer-XL: attention to the last M steps, as a memory that goes in and out.

Parisotto et al. 2020, "Stabilizing Transformers for reinforcement learning": layer normalisation
at the entry of each submodule, gates of GRU type in the place of sums; relative positions of Dai et
al. 2019, "Transformer-XL". Unlike there, every step sees exactly the M before it, wherever the
segment was cut: acting step by step and learning on whole segments agree.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from bray_algo.networks.encoders import sinusoidal
from bray_algo.networks.recurrent import checked_begins
from bray_algo.validation.tensors import check_shape


class Memory(NamedTuple):
    """What a `GatedTransformerXL` remembers of the steps before a segment.

    Attributes:
        steps: Inputs of each layer at the last M steps, the latest last, `[B, L, M, D]`.
        valid: Steps that are of the episode that goes on, bool `[B, M]`.
    """

    steps: Tensor
    valid: Tensor


class GatedTransformerXL(nn.Module):
    """A stack of gated layers with a memory.

    Args:
        input_size: Features of a step.
        size: Features D of each output, even.
        num_layers: Number L of layers.
        num_heads: Number of heads, which divides D.
        memory_length: Steps M that a layer looks back; the whole stack looks back L times as far.
            Cost and memory grow with it.
        gate_bias: b_g of equation 8, usually 2. A positive one lets a layer begin as nearly the
            identity, without which training is unsteady.

    Raises:
        ValueError: a number is not positive, or the heads do not divide the size.

    Examples:
        >>> network = GatedTransformerXL(4, size=8, num_layers=1, num_heads=2, memory_length=3)
        >>> outputs, memory = network(torch.zeros(5, 2, 4), network.initial(2))
        >>> outputs.shape, memory.steps.shape
        (torch.Size([5, 2, 8]), torch.Size([2, 1, 3, 8]))
    """

    def __init__(
        self,
        input_size: int,
        size: int = 128,
        num_layers: int = 3,
        num_heads: int = 4,
        memory_length: int = 64,
        gate_bias: float = 2.0,
    ) -> None:
        super().__init__()
        if min(input_size, num_layers, memory_length) < 1:
            raise ValueError(
                "input_size, num_layers, memory_length: expected positive numbers, "
                f"got {input_size}, {num_layers}, {memory_length}"
            )
        self.size, self.memory_length = size, memory_length
        self.entry = nn.Linear(input_size, size)
        self.layers = nn.ModuleList(
            _Layer(size, num_heads, memory_length, gate_bias) for _ in range(num_layers)
        )

    def initial(self, num: int) -> Memory:
        """Return the memory at the beginning of an episode: nothing valid."""
        shape = (num, len(self.layers), self.memory_length, self.size)
        steps = self.entry.weight.new_zeros(shape)
        valid = torch.zeros(num, self.memory_length, dtype=torch.bool, device=steps.device)
        return Memory(steps, valid)

    def forward(
        self,
        x: Tensor,
        memory: Memory,
        begins: Tensor | None = None,
        length: Tensor | None = None,
    ) -> tuple[Tensor, Memory]:
        """Return outputs `[T, B, D]` and the memory after the last step, which has no gradient.

        Args:
            x: Inputs, `[T, B, …]`.
            memory: Memory before the first step.
            begins: First steps of episodes, bool `[T, B]`; None: no episode begins inside.
            length: Valid steps of each column, `[B]`, 1 to T; None is T. Beyond, outputs are zero,
                and `x` may hold anything.

        Raises:
            ValueError: shapes do not agree.
        """
        begins = checked_begins(x, self.entry.in_features, begins, length)
        self._check(memory, x.shape[1])
        if length is None:
            length = torch.full_like(begins[0], len(x), dtype=torch.long)
        length = length.long()
        padding = torch.arange(len(x), device=x.device)[:, None] >= length
        hidden = self.entry(x.masked_fill(padding.unsqueeze(-1), 0.0)).transpose(0, 1)
        episode = begins.long().cumsum(0).T  # [B, T]; 0 goes on from the memory
        episodes = torch.cat([torch.where(memory.valid, 0, -1), episode], 1)  # [B, M + T]
        visible, distance = _sight(episode, episodes)
        # Of memory and segment [M + T], the M that end with the last valid step.
        kept = length[:, None] + torch.arange(self.memory_length, device=x.device)
        after = []
        for index, layer in enumerate(self.layers):
            both = torch.cat([memory.steps[:, index].detach(), hidden], 1)
            after.append(_rows(both, kept).detach())
            hidden = layer(hidden, both, visible, distance)
        last = episode.gather(1, length[:, None] - 1)
        memory = Memory(torch.stack(after, 1), episodes.gather(1, kept) == last)
        return hidden.transpose(0, 1).masked_fill(padding.unsqueeze(-1), 0.0), memory

    def _check(self, memory: Memory, num_columns: int) -> None:
        steps = (num_columns, len(self.layers), self.memory_length, self.size)
        check_shape("memory.steps", memory.steps, steps)
        check_shape("memory.valid", memory.valid, (num_columns, self.memory_length))


class _Layer(nn.Module):
    def __init__(self, size: int, num_heads: int, memory_length: int, gate_bias: float) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(size), nn.LayerNorm(size)
        self.attention = RelativeAttention(size, num_heads, memory_length)
        self.mlp = nn.Sequential(nn.Linear(size, 4 * size), nn.ReLU(), nn.Linear(4 * size, size))
        self.attention_gate, self.mlp_gate = GRUGate(size, gate_bias), GRUGate(size, gate_bias)

    def forward(self, x: Tensor, both: Tensor, visible: Tensor, distance: Tensor) -> Tensor:
        attended = self.attention(self.attention_norm(both), visible, distance)
        # Without this ReLU two linear layers would follow each other (Parisotto et al. 2020, §3.1).
        x = self.attention_gate(x, relu(attended))
        output: Tensor = self.mlp_gate(x, relu(self.mlp(self.mlp_norm(x))))
        return output


class GRUGate(nn.Module):
    """The GRU-type gate g(x, y) of Parisotto et al. 2020, equations 6 to 9."""

    def __init__(self, size: int, bias: float) -> None:
        super().__init__()
        self.from_y = nn.Linear(size, 3 * size, bias=False)
        self.from_x = nn.Linear(size, 2 * size, bias=False)
        self.from_reset = nn.Linear(size, size, bias=False)
        self.bias = nn.Parameter(torch.full((size,), bias))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return (1 − z) x + z h."""
        reset_y, update_y, content_y = self.from_y(y).chunk(3, -1)
        reset_x, update_x = self.from_x(x).chunk(2, -1)
        # The bias is taken off, so that z begins near 0 and the gate near x.
        update = torch.sigmoid(update_y + update_x - self.bias)
        content = torch.tanh(content_y + self.from_reset(torch.sigmoid(reset_y + reset_x) * x))
        return (1.0 - update) * x + update * content


class RelativeAttention(nn.Module):
    """Attention of T queries to M + T keys by content and distance (Dai et al. 2019, §3.3)."""

    def __init__(self, size: int, num_heads: int, memory_length: int) -> None:
        super().__init__()
        if num_heads < 1 or size < 1 or size % num_heads or size % 2:
            raise ValueError(
                f"size, num_heads: expected an even size that the heads divide, "
                f"got {size}, {num_heads}"
            )
        self.shape = (num_heads, size // num_heads)
        self.memory_length = memory_length
        self.query, self.key = nn.Linear(size, size, bias=False), nn.Linear(size, size, bias=False)
        self.value, self.output = nn.Linear(size, size), nn.Linear(size, size)
        self.position = nn.Linear(size, size, bias=False)
        self.content_bias = nn.Parameter(torch.zeros(self.shape))  # u
        self.position_bias = nn.Parameter(torch.zeros(self.shape))  # v
        distances = torch.arange(memory_length + 1)
        self.register_buffer("distances", sinusoidal(distances, size), persistent=False)
        self.distances: Tensor

    def forward(self, both: Tensor, visible: Tensor, distance: Tensor) -> Tensor:
        """Return `[B, T, D]` for memory and segment `[B, M + T, D]`.

        Args:
            both: Normalised inputs; the last T are the queries.
            visible: Keys that a query may see, bool `[B, T, M + T]`.
            distance: Steps from each key to each query, `[T, M + T]`.
        """
        query = self.query(both[:, self.memory_length :]).unflatten(-1, self.shape)
        key, value = (part(both).unflatten(-1, self.shape) for part in (self.key, self.value))
        position = self.position(self.distances).unflatten(-1, self.shape)
        content = torch.einsum("bthd,bjhd->bhtj", query + self.content_bias, key)
        by_distance = torch.einsum("bthd,mhd->bhtm", query + self.position_bias, position)
        index = distance.clamp(0, self.memory_length).expand_as(content)
        scores = (content + by_distance.gather(-1, index)) / self.shape[1] ** 0.5
        lowest = torch.finfo(scores.dtype).min
        weights = scores.masked_fill(~visible.unsqueeze(1), lowest).softmax(-1)
        output: Tensor = self.output(torch.einsum("bhtj,bjhd->bthd", weights, value).flatten(2))
        return output


def _sight(episode: Tensor, episodes: Tensor) -> tuple[Tensor, Tensor]:
    """Return which keys steps see, bool `[B, T, M + T]`, and how far they are, `[T, M + T]`.

    Args:
        episode: Number of each step's episode, `[B, T]`.
        episodes: Numbers of the episodes of memory and steps, `[B, M + T]`.
    """
    num_steps, num_keys = episode.shape[1], episodes.shape[1]
    steps = torch.arange(num_steps, device=episode.device)[:, None]
    distance = num_keys - num_steps + steps - torch.arange(num_keys, device=episode.device)
    within = (distance >= 0) & (distance <= num_keys - num_steps)
    return within & (episode.unsqueeze(-1) == episodes.unsqueeze(1)), distance


def _rows(both: Tensor, index: Tensor) -> Tensor:
    """Return the rows of `both [B, N, D]` at an index `[B, M]`, `[B, M, D]`."""
    return both.gather(1, index.unsqueeze(-1).expand(-1, -1, both.shape[-1]))
