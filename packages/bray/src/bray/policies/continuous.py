"""Continuous actions of SAC and TD3: their scale from −1 to 1, and the critics that judge them."""

from __future__ import annotations

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from bray.sources.environments import Spaces
from bray_algo import mlp
from bray_core.errors import ConfigError


class ActionBounds(nn.Module):
    """Scales actions between an environment's Box of one dimension D and −1 to 1.

    The bounds are buffers of the network, so they are saved and exported with it.

    Args:
        low: least actions `[D]`.
        high: greatest actions `[D]`.
    """

    low: Tensor
    high: Tensor

    def __init__(self, low: Tensor, high: Tensor) -> None:
        super().__init__()
        # Buffers, not parameters: saved and exported with the weights, never trained.
        self.register_buffer("low", low)
        self.register_buffer("high", high)

    @classmethod
    def of(cls, spaces: Spaces) -> ActionBounds:
        """Read an environment's bounds.

        Raises:
            ConfigError: the actions are no Box of one dimension, or have no bounds.
        """
        space = spaces.action_space
        if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
            raise ConfigError(
                f"environment: {spaces.environment}: expected actions that are a Box of one "
                f"dimension, got {space}"
            )
        if not np.isfinite(space.high - space.low).all():
            raise ConfigError(
                f"environment: {spaces.environment}: expected bounded actions, got {space}"
            )
        return cls(*(torch.tensor(bound, dtype=torch.float32) for bound in (space.low, space.high)))

    @property
    def size(self) -> int:
        """Number of dimensions D."""
        return len(self.low)

    def unit(self, action: Tensor) -> Tensor:
        """Scale actions `[…, D]` of the environment to [−1, 1]; clip those beyond the bounds."""
        return (2 * (action - self.low) / (self.high - self.low) - 1).clamp(-1, 1)

    def scale(self, unit: Tensor) -> Tensor:
        """Scale numbers `[…, D]` in [−1, 1] to the environment's actions."""
        return self.low + (self.high - self.low) * (unit + 1) / 2


class Critics(nn.Module):
    """K networks that each estimate the action value Q(s, a).

    One critic overestimates the actions that its errors favour; the least of two counters that
    (Fujimoto et al. 2018, "Addressing function approximation error in actor-critic methods").

    Args:
        observation_size: numbers S of an observation.
        action_size: numbers D of an action.
        hidden: units of each hidden layer, such as `(256, 256)`.
        count: number K of critics. Two are usual; more estimate lower and cost more.
    """

    def __init__(
        self, observation_size: int, action_size: int, hidden: tuple[int, ...], count: int = 2
    ) -> None:
        super().__init__()
        sizes = [observation_size + action_size, *hidden, 1]
        self.members = nn.ModuleList([mlp(sizes, nn.ReLU) for _ in range(count)])

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        """Map observations `[B, S]` and actions `[B, D]` to values `[K, B]`."""
        joined = _joined(observation, action)
        return torch.stack([member(joined).squeeze(-1) for member in self.members])

    def first(self, observation: Tensor, action: Tensor) -> Tensor:
        """Return the values `[B]` of the first critic, which the policy climbs in TD3."""
        values: Tensor = self.members[0](_joined(observation, action))
        return values.squeeze(-1)


def _joined(observation: Tensor, action: Tensor) -> Tensor:
    """Return observation and action side by side, in float32."""
    return torch.cat([observation.float(), action.float()], -1)
