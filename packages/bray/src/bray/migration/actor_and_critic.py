"""A policy and a value function of other sizes or activations than the default ones have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from bray.policies.flattening import Flattening, seen_space, split_mask
from bray.policies.heads import ActionHead
from bray_algo import mlp
from bray_core.nested import Nested
from bray_core.settings.ranges import PositiveInt, check_fields
from bray_core.spaces import Spaces

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "leaky_relu": nn.LeakyReLU,
    "silu": nn.SiLU,
    "sigmoid": nn.Sigmoid,
}
"""Activations by the names that a template gives them."""


class ActorAndCritic(nn.Module):
    """Two perceptrons side by side, each with layers of its own: a whole policy.

    A trial that `bray migrate` wrote names it as `model.network` where the default network has not
    the same layers.

    Args:
        spaces: what the policy sees and may do.
        settings: sizes and activation.
    """

    state_size = 0

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Config:
        """Sizes of the layers."""

        policy: tuple[PositiveInt, ...] = (64, 64)
        """Units of the policy's hidden layers; none is a single layer."""
        value: tuple[PositiveInt, ...] = (64, 64)
        """Units of the value function's hidden layers."""
        activation: Literal["tanh", "relu", "elu", "gelu", "leaky_relu", "silu", "sigmoid"] = "tanh"
        """What follows each hidden layer."""

        def __post_init__(self) -> None:
            check_fields(self)

    def __init__(self, spaces: Spaces, settings: Config) -> None:
        super().__init__()
        self._space = spaces.observation
        self._flatten = Flattening(seen_space(spaces))
        self.actions = ActionHead(spaces)
        activation = ACTIVATIONS[settings.activation]
        sizes = [self._flatten.size, *settings.policy, self.actions.num_numbers]
        self.policy = mlp(sizes, activation, output_gain=0.01)
        self.value = mlp([self._flatten.size, *settings.value, 1], activation)

    def forward(self, observation: Nested) -> dict[str, Any]:
        """Map observations, leaves `[…, *shape]`, to the action's outputs and `value […]`."""
        seen, mask = split_mask(observation, self._space)
        numbers = self._flatten(seen)
        outputs = self.actions(self.policy(numbers), mask)
        return {**outputs, "value": self.value(numbers).squeeze(-1).float()}
