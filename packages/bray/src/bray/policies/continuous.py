"""Continuous actions: their scale from −1 to 1, and the critics that judge them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bray.policies.action_range import action_range
from bray.policies.config import TrunkConfig
from bray.policies.trunks import Layers, make_network
from bray_algo import mlp
from bray_core.action_vector import ActionVector
from bray_core.errors import ConfigError
from bray_core.nested import Nested
from bray_core.spaces import Spaces

LOG_STD = (-10.0, 2.0)
"""Bounds of SAC's log standard deviation, before the squashing."""


class ActionBounds(nn.Module):
    """Scales actions between their bounds, D numbers, and −1 to 1.

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
        """Read the bounds of real actions.

        Raises:
            ConfigError: there are choices among the actions, or some have no bounds.
        """
        actions = ActionVector(spaces.action, spaces.origin)
        if actions.sizes:
            raise ConfigError(
                f"environment: {spaces.origin}: expected actions that are reals alone (Box), got "
                f"{len(actions.sizes)} choices among them: train PPO, or DQN or SAC for a single "
                "choice"
            )
        bounds = action_range(actions)
        if bounds is None:
            raise ConfigError(
                f"environment: {spaces.origin}: expected bounded actions, got some without bounds: "
                "wrap it (gymnasium.ActionWrapper, its action_space a Box with bounds), or train "
                "PPO"
            )
        return cls(*bounds)

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
        spaces: what the policy sees and may do.
        action_size: numbers D of an action.
        config: settings of each network.
        count: number K of critics. Two are usual; more estimate lower and cost more.
        layers: makes their fully connected layers.
    """

    def __init__(
        self,
        spaces: Spaces,
        action_size: int,
        config: TrunkConfig,
        count: int = 2,
        layers: Layers = mlp,
    ) -> None:
        super().__init__()
        self.members = nn.ModuleList(
            make_network(spaces, config, 1, nn.ReLU, num_extra=action_size, layers=layers)
            for _ in range(count)
        )

    def forward(self, seen: Nested, action: Tensor) -> Tensor:
        """Map observations `[B, …]`, without a mask, and actions `[B, D]` to values `[K, B]`."""
        return torch.stack([member(seen, action).squeeze(-1) for member in self.members])

    def first(self, seen: Nested, action: Tensor) -> Tensor:
        """Return the values `[B]` of the first critic, which the policy climbs in TD3."""
        values: Tensor = self.members[0](seen, action)
        return values.squeeze(-1)
