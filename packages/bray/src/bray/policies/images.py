"""Convolutional networks for images of any size, either order of channels, and stacks of them."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor, nn

from bray_algo.networks.initialisation import orthogonal_
from bray_core.spaces import LeafSpace

_FEATURES = 256
"""Features of an image beside other leaves, or before several hidden layers."""
_SMALL = 16
"""Least side of an image of pixels: smaller ones are grids of codes, taken as they are."""
_LARGE = 36
"""Least side that the convolutions of Mnih et al. 2015 take."""
_MOST_CELLS = 100
"""Cells of the last convolution at most: larger ones are halved further."""


class ImageEncoder(nn.Module):
    """Convolutions as the image's size allows, then one layer of features.

    Sides from 36 pixels on: those of Mnih et al. 2015, "Human-level control through deep
    reinforcement learning", and halvings until at most 100 cells are left. From 16 on: two of
    stride 2. Below: three of stride 1, that see a grid's neighbours.

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
        self._divisor = _divisor(leaf, min(height, width))
        layers: list[nn.Module] = []
        for out, kernel, stride, padding in _plan(height, width):
            layers += [_convolution(channels, out, kernel, stride, padding), nn.ReLU()]
            height, width = (
                (side + 2 * padding - kernel) // stride + 1 for side in (height, width)
            )
            channels = out
        last = orthogonal_(nn.Linear(channels * height * width, features), math.sqrt(2))
        self.layers = nn.Sequential(*layers, nn.Flatten(), last, nn.ReLU())
        self.size = features
        """Number of features F."""

    def forward(self, image: Tensor) -> Tensor:
        """Map images `[…, *shape]` to features `[…, F]`."""
        lead = image.shape[: image.ndim - self._rank]
        x = image.reshape(-1, *image.shape[image.ndim - self._rank :]).float() / self._divisor
        if self._rank == 2:
            x = x.unsqueeze(1)
        elif self._rank == 4:  # [K, H, W, C] or [K, C, H, W]
            x = (x.permute(0, 1, 4, 2, 3) if self._is_last else x).flatten(1, 2)
        elif self._is_last:
            x = x.permute(0, 3, 1, 2)
        features: Tensor = self.layers(x)
        return features.reshape(*lead, self.size)


def _plan(height: int, width: int) -> list[tuple[int, int, int, int]]:
    """Return channels, kernel, stride and padding of each convolution."""
    if min(height, width) >= _LARGE:
        plan = [(32, 8, 4, 0), (64, 4, 2, 0), (64, 3, 1, 0)]
        for _, kernel, stride, _ in plan:
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
        while height * width > _MOST_CELLS:
            plan.append((64, 3, 2, 1))
            height, width = (height + 1) // 2, (width + 1) // 2
        return plan
    if min(height, width) >= _SMALL:
        return [(32, 3, 2, 1), (64, 3, 2, 1), (64, 3, 1, 1)]
    return [(16, 3, 1, 1), (32, 3, 1, 1), (32, 3, 1, 1)]


def _convolution(channels: int, out: int, kernel: int, stride: int, padding: int) -> nn.Module:
    return orthogonal_(nn.Conv2d(channels, out, kernel, stride, padding), math.sqrt(2))


def _divisor(leaf: LeafSpace, side: int) -> float:
    """Return what brings pixels near 0 to 1; floats and the codes of small grids stay."""
    is_bytes = np.dtype(leaf.dtype) == np.uint8
    return 255.0 if is_bytes and side >= _SMALL else 1.0


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
