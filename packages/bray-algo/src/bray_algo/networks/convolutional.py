"""Convolutional networks for images: the Nature CNN, and the residual network of IMPALA."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, relu

from bray_algo.networks.initialisation import orthogonal_


class NatureEncoder(nn.Sequential):
    """The convolutional trunk of Mnih et al. 2015 (Nature 518): from frames to features.

    Args:
        channels: Number C of stacked frames in an observation, usually 4.
        hidden: Number H of features; the paper has 512.

    Raises:
        ValueError: a number is not positive.
    """

    def __init__(self, channels: int = 4, hidden: int = 512) -> None:
        if channels < 1 or hidden < 1:
            raise ValueError(
                f"channels, hidden: expected positive numbers, got {channels}, {hidden}"
            )
        gain = math.sqrt(2)
        super().__init__(
            orthogonal_(nn.Conv2d(channels, 32, 8, 4), gain),
            nn.ReLU(),
            orthogonal_(nn.Conv2d(32, 64, 4, 2), gain),
            nn.ReLU(),
            orthogonal_(nn.Conv2d(64, 64, 3, 1), gain),
            nn.ReLU(),
            nn.Flatten(),
            orthogonal_(nn.Linear(64 * 7 * 7, hidden), gain),
            nn.ReLU(),
        )

    def forward(self, frames: Tensor) -> Tensor:
        """Map uint8 frames `[B, C, 84, 84]` to features `[B, H]`."""
        # Channels last: on CPUs convolutions and their gradients take about half the time. Dividing
        # the first weights by 255 is less work than dividing the frames.
        x = frames.float().contiguous(memory_format=torch.channels_last)
        first, *rest = self
        assert isinstance(first, nn.Conv2d)
        x = conv2d(x, first.weight / 255.0, first.bias, first.stride)
        for layer in rest:
            x = layer(x)
        return x


class NatureCNN(nn.Module):
    """`NatureEncoder` with policy and value heads.

    Args:
        num_actions: Number A of actions.
        channels: Number C of stacked frames in an observation, usually 4.

    Raises:
        ValueError: a number is not positive.
    """

    def __init__(self, num_actions: int, channels: int = 4) -> None:
        super().__init__()
        if num_actions < 1 or channels < 1:
            raise ValueError(
                f"num_actions, channels: expected positive numbers, got {num_actions}, {channels}"
            )
        self.trunk = NatureEncoder(channels)
        self.policy = orthogonal_(nn.Linear(512, num_actions), 0.01)
        self.value = orthogonal_(nn.Linear(512, 1), 1.0)

    def forward(self, observation: Tensor) -> dict[str, Tensor]:
        """Map uint8 frames `[B, C, 84, 84]` to `logits [B, A]` and `value [B]`."""
        features = self.trunk(observation)
        return {"logits": self.policy(features), "value": self.value(features).squeeze(-1)}


class ResidualBlock(nn.Module):
    """Residual block x + conv(relu(conv(relu(x)))), which keeps the shape."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = orthogonal_(nn.Conv2d(channels, channels, 3, padding=1), math.sqrt(2))
        self.second = orthogonal_(nn.Conv2d(channels, channels, 3, padding=1), math.sqrt(2))

    def forward(self, x: Tensor) -> Tensor:
        """Map `[B, C, H, W]` to the same shape."""
        update: Tensor = self.second(relu(self.first(relu(x))))
        return x + update


class ImpalaResNet(nn.Module):
    """The large network of Espeholt et al. 2018, "IMPALA", figure 3, without its LSTM.

    For each depth: convolution 3 × 3, max-pooling 3 × 3 of stride 2, two residual blocks; then
    ReLU, one linear layer, ReLU.

    Args:
        channels: Number C of channels of an observation.
        height: Height H in pixels.
        width: Width W in pixels.
        depths: Channels of each section, each of which halves H and W. Twice as many see more and
            cost about four times as much.
        num_features: Number F of features, the units of the last layer.

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
        # Bytes are pixels; floats are taken as scaled already.
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
