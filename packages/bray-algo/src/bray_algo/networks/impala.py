"""The residual convolutional trunk of IMPALA."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from bray_algo.networks.feedforward import orthogonal_


class ResidualBlock(nn.Module):
    """x + conv(relu(conv(relu(x)))), shapes unchanged."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = orthogonal_(nn.Conv2d(channels, channels, 3, padding=1), math.sqrt(2))
        self.second = orthogonal_(nn.Conv2d(channels, channels, 3, padding=1), math.sqrt(2))

    def forward(self, x: Tensor) -> Tensor:
        """Map `[B, C, H, W]` to the same."""
        update: Tensor = self.second(relu(self.first(relu(x))))
        return x + update


class ImpalaResNet(nn.Module):
    """The large network of Espeholt et al. 2018, "IMPALA", figure 3, without its LSTM.

    For each depth: convolution 3 × 3, max-pooling 3 × 3 of stride 2, two residual blocks; then
    ReLU, one linear layer, ReLU.

    Args:
        channels: C of the observations.
        height: H, pixels.
        width: W, pixels.
        depths: channels of each section, each of which halves H and W.
        num_features: units of the last layer.

    Raises:
        ValueError: a number is not positive.

    Examples:
        >>> ImpalaResNet(4)(torch.zeros(2, 4, 84, 84, dtype=torch.uint8)).shape
        torch.Size([2, 256])
    """

    def __init__(
        self,
        channels: int,
        height: int = 84,
        width: int = 84,
        depths: Sequence[int] = (16, 32, 32),
        num_features: int = 256,
    ) -> None:
        super().__init__()
        numbers = [channels, height, width, *depths, num_features]
        if min(numbers) < 1 or not depths:
            raise ValueError(
                "channels, height, width, depths, num_features: expected positive numbers, "
                f"got {channels}, {height}, {width}, {list(depths)}, {num_features}"
            )
        sections: list[nn.Module] = []
        for depth in depths:
            sections += _section(channels, depth)
            channels, height, width = depth, (height + 1) // 2, (width + 1) // 2
        last = nn.Linear(channels * height * width, num_features)
        self.trunk = nn.Sequential(
            *sections, nn.ReLU(), nn.Flatten(), orthogonal_(last, math.sqrt(2)), nn.ReLU()
        )

    def forward(self, observation: Tensor) -> Tensor:
        """Map frames `[B, C, H, W]`, uint8 of 0 to 255 or floats as they are, to `[B, F]`."""
        if observation.dtype == torch.uint8:
            observation = observation.to(torch.float32) / 255.0
        features: Tensor = self.trunk(observation)
        return features


def _section(channels: int, depth: int) -> list[nn.Module]:
    convolution = orthogonal_(nn.Conv2d(channels, depth, 3, padding=1), math.sqrt(2))
    return [
        convolution,
        nn.MaxPool2d(3, stride=2, padding=1),
        ResidualBlock(depth),
        ResidualBlock(depth),
    ]
