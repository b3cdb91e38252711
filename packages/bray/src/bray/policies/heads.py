"""Action heads: from the numbers of a network's last layer to a distribution over actions."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from bray.policies.action_range import action_range
from bray.policies.conditional_choices import ConditionalChoices
from bray.policies.config import NetworkConfig
from bray_algo.distributions import beta, categorical, multi_categorical
from bray_core.action_vector import ActionVector
from bray_core.errors import ConfigError
from bray_core.spaces import Spaces


class ActionHead(nn.Module):
    """Turns the numbers of a network's last layer into the parameters of an action distribution.

    One choice of A has `logits [A]`, several have a list of `logits [A_k]`, D reals have `mean [D]`
    and `log_std [D]`; an action of both has both. The standard deviation is a parameter of its own,
    the same for all observations, and begins at 1. Beta distributions have `alpha` and `beta [D]`,
    both from the layer, so that their spread depends on the observation. Drawn numbers are those
    of `bray_core.action_vector`. Where later choices depend on earlier ones there are `conditional`
    and `order` besides (`ConditionalChoices`).

    Args:
        spaces: what the policy sees and may do.
        config: the network's settings. `distribution` says how reals are drawn: `gaussian`, or
            `squashed` between their bounds by tanh (Haarnoja et al. 2018), or by `beta`
            distributions between them (Chou et al. 2017), both with `low` and `high [D]` beside.

    Raises:
        ConfigError: squashed reals, or those of Beta distributions, have no bounds, or choices
            cannot depend on each other.
    """

    low: Tensor
    high: Tensor
    sharpness: Tensor

    def __init__(self, spaces: Spaces, config: NetworkConfig | None = None) -> None:
        super().__init__()
        config = config or NetworkConfig()
        distribution = config.distribution
        actions = ActionVector(spaces.action, spaces.origin)
        self.sizes = actions.sizes
        self.is_one = actions.is_one
        self.num_reals = actions.num_reals
        self.is_beta = distribution == "beta" and self.num_reals > 0
        self.is_bounded = distribution in ("squashed", "beta") and self.num_reals > 0
        self._of_actions = sum(self.sizes) + self.num_reals * (2 if self.is_beta else 1)
        self.num_numbers = self._of_actions
        self.conditional: ConditionalChoices | None = None
        if config.autoregressive:
            self.conditional = ConditionalChoices(spaces, config)
            self.num_numbers += self.conditional.num_numbers
        if self.is_beta:
            # A buffer: `soften` widens the distributions by it.
            self.register_buffer("sharpness", torch.ones(()))
        elif self.num_reals:
            self.log_std = nn.Parameter(torch.zeros(self.num_reals))
        if self.is_bounded:
            bounds = action_range(actions)
            if bounds is None:
                raise ConfigError(
                    f"model.distribution: {distribution} needs bounded actions, {spaces.origin} "
                    "has none for some: choose gaussian, or wrap it with bounds"
                )
            for name, bound in zip(("low", "high"), bounds, strict=True):
                self.register_buffer(name, bound)

    def forward(self, numbers: Tensor, mask: Tensor | None) -> dict[str, Any]:
        """Map numbers `[…, num_numbers]` and a mask of the choices' values to the outputs."""
        numbers = numbers.float()  # bfloat16 has too few digits for probabilities
        if self.conditional is None:
            return self._actions(numbers, mask)
        tables = self.conditional(numbers[..., self._of_actions :])
        return {**self._actions(numbers[..., : self._of_actions], mask), **tables}

    def _actions(self, numbers: Tensor, mask: Tensor | None) -> dict[str, Any]:
        if not self.sizes:
            return self._reals(numbers)
        of_choices = sum(self.sizes)
        choices = numbers[..., :of_choices] if self.num_reals else numbers
        if mask is not None:
            mask = mask.bool()  # padding has no legal action: there all are allowed
            choices = categorical.mask(choices, mask | ~mask.any(-1, keepdim=True))
        if self.is_one:
            return {"logits": choices}
        outputs: dict[str, Any] = {"logits": multi_categorical.split(choices, self.sizes)}
        return {**outputs, **self._reals(numbers[..., of_choices:])} if self.num_reals else outputs

    def _reals(self, numbers: Tensor) -> dict[str, Any]:
        if self.is_beta:
            alpha, other = beta.parameters(numbers)
            # π^(1 / T) of a Beta has parameters whose distances from 1 are as much smaller.
            outputs = {
                "alpha": 1.0 + (alpha - 1.0) * self.sharpness,
                "beta": 1.0 + (other - 1.0) * self.sharpness,
            }
        else:
            outputs = {"mean": numbers, "log_std": self.log_std.expand_as(numbers)}
        mean = next(iter(outputs.values()))
        if self.is_bounded:
            outputs |= {"low": self.low.expand_as(mean), "high": self.high.expand_as(mean)}
        return outputs

    @torch.no_grad()
    def soften(self, temperature: float, last: nn.Module) -> None:
        """Flatten the distribution: π becomes π^(1 / temperature), normalised.

        Where later choices depend on earlier ones, that is done to each given those before.

        Args:
            temperature: above 1 makes the policy less certain, below 1 more.
            last: the layer that makes the numbers.
        """
        assert isinstance(last, nn.Linear)
        of_choices = sum(self.sizes)
        last.weight[:of_choices].div_(temperature)
        last.bias[:of_choices].div_(temperature)
        if self.conditional is not None:
            rows = slice(self._of_actions, None)
            self.conditional.soften(temperature, last.weight[rows], last.bias[rows])
        if self.is_beta:
            self.sharpness.div_(temperature)
        elif self.num_reals:  # a Gaussian to this power has a variance larger by this factor
            self.log_std.add_(math.log(temperature) / 2)
