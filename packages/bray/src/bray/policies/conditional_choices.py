"""Choices of which later ones depend on earlier ones: their order, and the tables that say how."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from bray.policies.config import NetworkConfig
from bray_core import nested
from bray_core.action_vector import ActionVector, sizes_of
from bray_core.errors import ConfigError
from bray_core.spaces import Spaces

_MOST_NUMBERS = 2**18
"""Numbers of a row's tables, above which they are refused: a megabyte an answer."""


class ConditionalChoices(nn.Module):
    """Turns the last numbers of a layer into what each choice adds to all that is drawn after it.

    Args:
        spaces: what the policy sees and may do.
        config: the network's settings.

    Raises:
        ConfigError: there is nothing to put in order, the order is another action's, or the tables
            would be too large.
    """

    later: Tensor
    order: Tensor

    def __init__(self, spaces: Spaces, config: NetworkConfig) -> None:
        super().__init__()
        actions = ActionVector(spaces.action, spaces.origin)
        _check(actions, spaces, config)
        order = choice_order(spaces, config.action_order)
        num_values = sum(actions.sizes)
        self._shape = (num_values, num_values + actions.num_reals)
        self.num_values = num_values
        self.num_numbers = self._shape[0] * self._shape[1]
        if self.num_numbers > _MOST_NUMBERS:
            raise ConfigError(
                f"model.autoregressive: expected at most {_MOST_NUMBERS} numbers of tables, got "
                f"{num_values} values × {self._shape[1]} numbers in {spaces.origin}: leave it off, "
                "or give the action fewer values"
            )
        later = _later(actions.sizes, order, self._shape)
        self.register_buffer("later", later, persistent=False)
        self.register_buffer("order", torch.tensor(order, dtype=torch.float32), persistent=False)

    def forward(self, numbers: Tensor) -> dict[str, Tensor]:
        """Map numbers `[…, num_numbers]` to `conditional` and `order`."""
        tables = numbers.reshape(*numbers.shape[:-1], *self._shape) * self.later
        order = self.order.expand(*numbers.shape[:-1], -1)
        return {"conditional": tables, "order": order}

    def soften(self, temperature: float, weight: Tensor, bias: Tensor) -> None:
        """Divide what is added to logits, by the layer's rows for the tables."""
        weight.view(*self._shape, -1)[:, : self.num_values].div_(temperature)
        bias.view(self._shape)[:, : self.num_values].div_(temperature)


def choice_order(spaces: Spaces, names: Sequence[str]) -> list[int]:
    """Return the order in which the parts of an action are drawn, each by its index.

    Args:
        spaces: what the policy may do.
        names: paths of the action's choices in the wanted order; none is the order of the space.

    Raises:
        ConfigError: they are not each of the action's choices once.
    """
    leaves = nested.flatten(spaces.action)
    counts = {
        path: len(sizes_of(leaf))
        for path, leaf in leaves.items()
        if leaf.kind in ("category", "binary")
    }
    if names and sorted(names) != sorted(counts):
        raise ConfigError(
            f"model.action_order: expected each choice of {spaces.origin} once "
            f"({', '.join(counts)}; reals follow them), got {', '.join(names)}"
        )
    starts = dict(zip(counts, accumulate(counts.values(), initial=0), strict=False))
    return [starts[path] + i for path in names or counts for i in range(counts[path])]


def _check(actions: ActionVector, spaces: Spaces, config: NetworkConfig) -> None:
    if not actions.sizes or len(actions.sizes) + actions.num_reals < 2:
        raise ConfigError(
            "model.autoregressive: expected an action of several choices, or of choices and reals; "
            f"{spaces.origin} has {len(actions.sizes)} of the first and {actions.num_reals} of the "
            "second: leave it off"
        )
    if actions.num_reals and config.distribution == "beta":
        raise ConfigError(
            "model.autoregressive: expected distribution gaussian or squashed for reals after "
            "choices, got beta"
        )


def _later(sizes: Sequence[int], order: Sequence[int], shape: tuple[int, int]) -> Tensor:
    """Return 1 where a row's value is chosen before a column's number is drawn, else 0."""
    rank = torch.empty(len(sizes), dtype=torch.int64)
    rank[torch.tensor(order)] = torch.arange(len(sizes))
    of_values = rank.repeat_interleave(torch.tensor(sizes))
    of_reals = torch.full((shape[1] - shape[0],), len(sizes))
    return (of_values[:, None] < torch.cat([of_values, of_reals])).float()
