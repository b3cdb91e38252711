"""What a policy remembers by: an LSTM, a GRU, or attention to the last steps.

All have one signature, and a state that is one vector `[S]`, so that it travels with a session and
in a segment as one leaf. Zeros are the state at an episode's beginning.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor, nn

from bray.policies.config import MemoryConfig
from bray_algo.networks.recurrent import Recurrent
from bray_algo.networks.transformer_xl import GatedTransformerXL, Memory


class StepMemory(nn.Module):
    """A gated Transformer-XL (Parisotto et al. 2019) whose memory is one vector `[S]`.

    S = L M D + M: what each of L layers read at the last M steps, D numbers each, and for each of
    these steps whether it has been (1) or not (0). So zeros remember nothing.

    Args:
        input_size: features of a step.
        size: features D of each output, even.
        num_layers: number L of layers.
        memory_length: steps M that a layer looks back.
    """

    def __init__(self, input_size: int, size: int, num_layers: int, memory_length: int) -> None:
        super().__init__()
        num_heads = 4 if size % 4 == 0 else 2
        self.core = GatedTransformerXL(input_size, size, num_layers, num_heads, memory_length)
        self._shape = num_layers, memory_length, size
        self.state_size = num_layers * memory_length * size + memory_length

    def forward(
        self,
        x: Tensor,
        state: Tensor,
        begins: Tensor | None = None,
        length: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return outputs `[T, B, D]` and the state after the last step `[B, S]`.

        Args:
            x: inputs, `[T, B, F]`.
            state: state before the first step, `[B, S]`.
            begins: first steps of episodes, bool `[T, B]`; None: no episode begins inside.
            length: valid steps of each column, `[B]`, 1 to T; None is T.
        """
        _, memory_length, _ = self._shape
        steps = state[:, :-memory_length].reshape(-1, *self._shape)
        memory = Memory(steps, state[:, -memory_length:] > 0.5)
        outputs, memory = self.core(x, memory, begins, length)
        # What is not of this episode is set to zero, as it is at the beginning.
        steps = memory.steps * memory.valid[:, None, :, None]
        return outputs, torch.cat([steps.flatten(1), memory.valid.to(steps.dtype)], 1)


AnyMemory: TypeAlias = Recurrent | StepMemory


def make_memory(input_size: int, config: MemoryConfig) -> AnyMemory:
    """Make what remembers; it has the number of its state's values as `state_size`.

    Args:
        input_size: features of a step.
        config: the network's settings, with a `memory_size` above 0.
    """
    if config.memory != "gtrxl":
        return Recurrent(config.memory, input_size, config.memory_size)
    layers, length = config.memory_layers, config.memory_length
    return StepMemory(input_size, config.memory_size, layers, length)
