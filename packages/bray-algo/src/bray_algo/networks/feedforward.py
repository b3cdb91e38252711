"""Networks that take observations `[B, …]` and give named outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from bray_algo.scalars import check_number


def orthogonal_(layer: nn.Linear | nn.Conv2d, gain: float) -> nn.Linear | nn.Conv2d:
    """Initialise a layer's weight orthogonally with this gain, its bias with zeros.

    Saxe et al. 2014, "Exact solutions to the nonlinear dynamics of learning in deep linear neural
    networks".

    Raises:
        ValueError: the gain is not finite.
    """
    check_number("gain", gain)
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def mlp(
    sizes: Sequence[int],
    activation: Callable[[], nn.Module] = nn.Tanh,
    *,
    output_gain: float = 1.0,
) -> nn.Sequential:
    """Return a multi-layer perceptron with activations between the layers, none after the last.

    Args:
        sizes: features of the input, the hidden layers and the output.
        activation: makes one activation, such as `nn.Tanh` or `nn.ReLU`.
        output_gain: of the last layer's orthogonal initialisation; the others have √2.

    Raises:
        ValueError: fewer than two sizes, or one that is not positive.
    """
    if len(sizes) < 2 or min(sizes) < 1:
        raise ValueError(f"sizes: expected two or more positive sizes, got {list(sizes)}")
    layers: list[nn.Module] = []
    for index in range(len(sizes) - 1):
        is_last = index == len(sizes) - 2
        layer = nn.Linear(sizes[index], sizes[index + 1])
        layers.append(orthogonal_(layer, output_gain if is_last else math.sqrt(2)))
        if not is_last:
            layers.append(activation())
    return nn.Sequential(*layers)


class PolicyValueMLP(nn.Module):
    """Two perceptrons side by side: a categorical policy and a value function.

    Args:
        observation_size: D.
        num_actions: A.
        hidden: units of each hidden layer, the same in both.

    Examples:
        >>> outputs = PolicyValueMLP(4, 2)(torch.zeros(3, 4))
        >>> outputs["logits"].shape, outputs["value"].shape
        (torch.Size([3, 2]), torch.Size([3]))
    """

    def __init__(
        self, observation_size: int, num_actions: int, hidden: Sequence[int] = (64, 64)
    ) -> None:
        super().__init__()
        # A policy that begins nearly uniform explores (Andrychowicz et al. 2021, §3.2).
        self.policy = mlp([observation_size, *hidden, num_actions], output_gain=0.01)
        self.value = mlp([observation_size, *hidden, 1])

    def forward(self, observation: Tensor) -> dict[str, Tensor]:
        """Map observations `[B, D]` to `logits [B, A]` and `value [B]`."""
        return {"logits": self.policy(observation), "value": self.value(observation).squeeze(-1)}


class NatureEncoder(nn.Sequential):
    """The convolutional trunk of Mnih et al. 2015 (Nature 518): from frames to features.

    Args:
        channels: stacked frames C of the observations.
        hidden: features H; the paper has 512.

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
        x = functional.conv2d(x, first.weight / 255.0, first.bias, first.stride)
        for layer in rest:
            x = layer(x)
        return x


class NatureCNN(nn.Module):
    """`NatureEncoder` with policy and value heads.

    Args:
        num_actions: A.
        channels: stacked frames C of the observations.

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
