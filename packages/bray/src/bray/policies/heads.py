"""Action heads: from the numbers of a network's last layer to a distribution over actions."""

from __future__ import annotations

import math
from typing import Any

import torch
from gymnasium import spaces as kinds
from torch import Tensor, nn

from bray.sources.environments import Spaces
from bray_algo.distributions import categorical, multi_categorical
from bray_core.errors import ConfigError


class ActionHead(nn.Module):
    """Turns the numbers of a network's last layer into the parameters of an action distribution.

    Discrete actions A have `logits [A]`, MultiDiscrete ones a list of `logits [A_k]`, a Box of one
    dimension D has `mean [D]` and `log_std [D]`. The standard deviation is a parameter of its own,
    the same for all observations, and begins at 1.

    Args:
        spaces: spaces of the environment.

    Raises:
        ConfigError: the action space is none of these.
    """

    def __init__(self, spaces: Spaces) -> None:
        super().__init__()
        space = spaces.action_space
        self.sizes: list[int] = []  # empty for a Box
        self.is_one = isinstance(space, kinds.Discrete)
        if isinstance(space, kinds.Discrete):
            self.sizes = [int(space.n)]
        elif isinstance(space, kinds.MultiDiscrete) and len(space.shape) == 1:
            self.sizes = space.nvec.tolist()
        elif isinstance(space, kinds.Box) and len(space.shape) == 1 and space.dtype.kind == "f":
            self.log_std = nn.Parameter(torch.zeros(space.shape))
        else:
            raise ConfigError(
                f"environment: {spaces.environment}: expected Discrete actions, or MultiDiscrete "
                f"or a Box of one dimension, got {space}"
            )
        self.num_numbers = sum(self.sizes) or int(spaces.action.shape[0])

    def forward(self, numbers: Tensor, mask: Tensor | None) -> dict[str, Any]:
        """Map numbers `[…, num_numbers]` and a mask of that shape to the outputs."""
        if not self.sizes:
            return {"mean": numbers.float(), "log_std": self.log_std.expand_as(numbers)}
        numbers = numbers.float()  # bfloat16 has too few digits for probabilities
        if mask is not None:
            mask = mask.bool()  # padding has no legal action: there all are allowed
            numbers = categorical.mask(numbers, mask | ~mask.any(-1, keepdim=True))
        if self.is_one:
            return {"logits": numbers}
        return {"logits": multi_categorical.split(numbers, self.sizes)}

    @torch.no_grad()
    def soften(self, temperature: float, last: nn.Module) -> None:
        """Flatten the distribution: π becomes π^(1 / temperature), normalised.

        Args:
            temperature: above 1 makes the policy less certain, below 1 more.
            last: the layer that makes the numbers.
        """
        assert isinstance(last, nn.Linear)
        if self.sizes:
            last.weight.div_(temperature)
            last.bias.div_(temperature)
        else:  # a Gaussian to this power has a variance larger by this factor
            self.log_std.add_(math.log(temperature) / 2)
