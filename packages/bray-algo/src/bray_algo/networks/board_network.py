"""A small policy-value network for boards on which rows count."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bray_algo.networks.initialisation import orthogonal_


class BoardNetwork(nn.Module):
    """One convolution over every window of the board, fully connected layers, two heads.

    A window as wide as a winning row sees each of them whole, so that one convolution without
    padding does what a tower of small ones would need several for; on a CPU that is 3 to 6 times
    as quick as two to three layers of 3 × 3.

    Args:
        shape: Height H and width W of the board.
        num_actions: Number A of actions.
        planes: Number C of planes of an observation.
        window: Side of the convolution, at most the smaller of H and W.
        channels: Channels of the convolution.
        hidden: Units of the fully connected layers, one or more.

    Raises:
        ValueError: a number is not positive, or the window exceeds the board.

    Examples:
        >>> outputs = BoardNetwork((6, 7), 7)(torch.zeros(3, 2, 6, 7))
        >>> outputs["logits"].shape, outputs["value"].shape
        (torch.Size([3, 7]), torch.Size([3]))
    """

    def __init__(
        self,
        shape: tuple[int, int],
        num_actions: int,
        *,
        planes: int = 2,
        window: int = 4,
        channels: int = 64,
        hidden: Sequence[int] = (256, 128),
    ) -> None:
        super().__init__()
        if not hidden or min(*shape, num_actions, planes, window, channels, *hidden) < 1:
            raise ValueError(
                "shape, num_actions, planes, window, channels, hidden: expected positive numbers, "
                f"got {shape}, {num_actions}, {planes}, {window}, {channels}, {hidden}"
            )
        if window > min(shape):
            raise ValueError(f"window: expected {min(shape)} or less, got {window}")
        gain = math.sqrt(2)
        places = (shape[0] - window + 1) * (shape[1] - window + 1)
        layers: list[nn.Module] = [
            orthogonal_(nn.Conv2d(planes, channels, window), gain),
            nn.ReLU(),
            nn.Flatten(),
        ]
        sizes = [channels * places, *hidden]
        for before, after in zip(sizes, hidden, strict=False):
            layers += [orthogonal_(nn.Linear(before, after), gain), nn.ReLU()]
        self.trunk = nn.Sequential(*layers)
        self.policy = orthogonal_(nn.Linear(sizes[-1], num_actions), 0.01)
        self.value = orthogonal_(nn.Linear(sizes[-1], 1), 0.1)

    def forward(self, observation: Tensor) -> dict[str, Tensor]:
        """Map planes `[B, C, H, W]` to `logits [B, A]` and `value [B]`, −1 to 1."""
        features = self.trunk(observation)
        # Outcomes lie within −1 and 1, and so does the value.
        value = torch.tanh(self.value(features)).squeeze(-1)
        return {"logits": self.policy(features), "value": value}
