"""Convolutional networks for images of any size, either order of channels, and stacks of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from bray_algo.networks.initialisation import orthogonal_
from bray_core.spaces import LeafSpace

_FEATURES = 256
"""Features of an image beside other leaves, or before several hidden layers."""
_SMALL = 16
"""Least longer side of an image of pixels: smaller ones are grids of codes, taken as they are."""
_LARGE = 36
"""Least side that the convolutions of Mnih et al. 2015 take."""
_MOST_CELLS = 100
"""Cells of the last convolution at most: larger ones are halved further."""


class ImageEncoder(nn.Module):
    """Convolutions as the image's size allows, then one layer of features.

    Sides from 36 pixels on: those of Mnih et al. 2015, "Human-level control through deep
    reinforcement learning". From 16 on: two of stride 2, and one. Where a side is below 16: three
    that halve only the other side, so that a grid's neighbours are seen. Halvings follow until at
    most 100 cells are left, but for grids whose sides are both below 16.

    Whole numbers with bounds become shares of them, bytes without bounds shares of 255. Grids
    whose sides are both below 16 are codes, and stay.

    Args:
        leaf: space of the image: `[H, W]`, `[H, W, C]` or `[C, H, W]` (the smaller end is that of
            the channels), a stack `[K, H, W, C]`.
        features: number of features F.
    """

    def __init__(self, leaf: LeafSpace, features: int = _FEATURES) -> None:
        super().__init__()
        self._rank = len(leaf.shape)
        self._is_last = is_channels_last(leaf.shape)
        channels, height, width = channels_and_sides(leaf.shape)
        self._least, self._span = _range(leaf, max(height, width))
        layers: list[nn.Module] = []
        for layer in _plan(height, width):
            layers += [layer.module(channels), nn.ReLU()]
            height, width = layer.sides_of(height, width)
            channels = layer.channels
        last = orthogonal_(nn.Linear(channels * height * width, features), math.sqrt(2))
        self.layers = nn.Sequential(*layers, nn.Flatten(), last, nn.ReLU())
        self.size = features
        """Number of features F."""

    def forward(self, image: Tensor) -> Tensor:
        """Map images `[…, *shape]` to features `[…, F]`."""
        lead = image.shape[: image.ndim - self._rank]
        x = image.reshape(-1, *image.shape[image.ndim - self._rank :]).float()
        x = (x - self._least if self._least else x) / self._span
        if self._rank == 2:
            x = x.unsqueeze(1)
        elif self._rank == 4:  # [K, H, W, C] or [K, C, H, W]
            x = (x.permute(0, 1, 4, 2, 3) if self._is_last else x).flatten(1, 2)
        elif self._is_last:
            x = x.permute(0, 3, 1, 2)
        features: Tensor = self.layers(x)
        return features.reshape(*lead, self.size)


@dataclass(frozen=True, slots=True)
class _Convolution:
    """One convolution: its outputs, the side of its kernel, and its strides down and across."""

    channels: int
    kernel: int
    strides: tuple[int, int]
    padding: int

    def sides_of(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width of what it makes of an image."""
        down, across = self.strides
        more = 2 * self.padding - self.kernel
        return (height + more) // down + 1, (width + more) // across + 1

    def module(self, channels: int) -> nn.Module:
        """Make it for inputs of so many channels."""
        made = nn.Conv2d(channels, self.channels, self.kernel, self.strides, self.padding)
        return orthogonal_(made, math.sqrt(2))


def _plan(height: int, width: int) -> list[_Convolution]:
    """Return the convolutions that suit an image of this size."""
    if max(height, width) < _SMALL:
        return [_Convolution(channels, 3, (1, 1), 1) for channels in (16, 32, 32)]
    plan: list[_Convolution] = []

    def add(channels: int, kernel: int, strides: tuple[int, int], padding: int) -> None:
        nonlocal height, width
        plan.append(_Convolution(channels, kernel, strides, padding))
        height, width = plan[-1].sides_of(height, width)

    least = min(height, width)
    if least >= _LARGE:
        for channels, kernel, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
            add(channels, kernel, (stride, stride), 0)
    elif least >= _SMALL:
        for channels, stride in ((32, 2), (64, 2), (64, 1)):
            add(channels, 3, (stride, stride), 1)
    else:
        for channels in (16, 32, 32):
            add(channels, 3, (1 + (height >= _SMALL), 1 + (width >= _SMALL)), 1)
    while height * width > _MOST_CELLS:
        add(64, 3, (2, 2), 1)
    return plan


def _range(leaf: LeafSpace, longest: int) -> tuple[float, float]:
    """Return what is taken from an image's numbers, and what they are then divided by.

    Args:
        leaf: space of the image.
        longest: its longer side.
    """
    kind = np.dtype(leaf.dtype)
    if kind.kind not in "iu" or longest < _SMALL:
        return 0.0, 1.0
    low, high = leaf.low, leaf.high
    if isinstance(low, float) and isinstance(high, float) and high > low:
        return low, high - low
    return 0.0, 255.0 if kind == np.uint8 else 1.0


def is_channels_last(shape: tuple[int, ...]) -> bool:
    """Return whether an image's channels come after its sides: the smaller end is theirs."""
    if len(shape) == 4:
        return shape[-1] <= shape[1]
    return len(shape) == 3 and shape[-1] < shape[0]


def channels_and_sides(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return channels, height and width of an image or a stack of images."""
    if len(shape) == 2:
        return 1, *shape
    inner = shape[-3:]
    channels, height, width = inner if not is_channels_last(shape) else (inner[2], *inner[:2])
    return channels * (shape[0] if len(shape) == 4 else 1), height, width


def is_stack_of_frames(leaf: LeafSpace) -> bool:
    """Return whether an image is a stack of frames `[C, 84, 84]` of bytes, as of Atari games."""
    return leaf.dtype == "uint8" and len(leaf.shape) == 3 and leaf.shape[1:] == (84, 84)
