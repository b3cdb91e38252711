"""Perceptrons: `mlp`, and a policy beside a value function made of two."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor, nn

from bray_algo.networks.initialisation import orthogonal_


def mlp(
    sizes: Sequence[int],
    activation: Callable[[], nn.Module] = nn.Tanh,
    *,
    output_gain: float = 1.0,
) -> nn.Sequential:
    """Return a multi-layer perceptron with activations between the layers, none after the last.

    Args:
        sizes: Features of the input, of each hidden layer and of the output.
        activation: Makes one activation, such as `nn.Tanh` or `nn.ReLU`.
        output_gain: Gain of the last layer's orthogonal initialisation; the others have √2. A
            policy's is usually 0.01, so that it begins nearly uniform; a value's 1.

    Raises:
        ValueError: fewer than two sizes, or one that is not positive.
    """
    if len(sizes) < 2 or min(sizes) < 1:
        raise ValueError(f"sizes: expected two or more positive sizes, got {list(sizes)}")
    layers: list[nn.Module] = []
    for index in range(len(sizes) - 1):
        is_last = index == len(sizes) - 2
        layer = nn.Linear(sizes[index], sizes[index + 1])
        # √2 makes up for the half of its inputs that a ReLU drops; tanh bears it, too.
        layers.append(orthogonal_(layer, output_gain if is_last else math.sqrt(2)))
        if not is_last:
            layers.append(activation())
    return nn.Sequential(*layers)


class PolicyValueMLP(nn.Module):
    """Two perceptrons side by side: a categorical policy and a value function.

    Args:
        observation_size: Number D of features of an observation.
        num_actions: Number A of actions.
        hidden: Units of each hidden layer, the same in both; two of 64 to 256 are usual.

    Examples:
        >>> import torch
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
