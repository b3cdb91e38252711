"""Stacks of frames that are stored once: chosen by number, gathered to be computed on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bray_core import nested
from bray_core.nested import Nested


@dataclass(frozen=True, slots=True)
class FrameStacks:
    """A leaf `[…, C, H, W]` that is indexed like a tensor and copies no frame meanwhile."""

    frames: Tensor
    """`[N, H, W]`; frames of a stack follow each other."""
    first: Tensor
    """The number of each stack's first frame, int64 `[…]`."""
    size: int
    """C."""

    def __getitem__(self, index: Any) -> FrameStacks:
        return replace(self, first=self.first[index])

    def tensor(self) -> Tensor:
        """Return the stacks themselves, channels last in memory, as convolutions want them."""
        first = self.first.flatten()
        frames = [self.frames.index_select(0, first + step) for step in range(self.size)]
        stacks = torch.stack(frames, -1).movedim(-1, 1)
        return stacks.view(*self.first.shape, *stacks.shape[1:])


def rearrange(arrange: Callable[..., Tensor], *leaves: Any) -> Any:
    """Apply what only moves rows, such as `torch.cat`, to tensors, or to the numbers of stacks."""
    if isinstance(leaves[0], FrameStacks):
        return replace(leaves[0], first=arrange(*(leaf.first for leaf in leaves)))
    return arrange(*leaves)


def as_tensors(observation: Nested) -> Any:
    """Return observations as modules take them."""
    return nested.map(
        lambda leaf: leaf.tensor() if isinstance(leaf, FrameStacks) else leaf, observation
    )
