"""Heads that turn features into the logits of a pointer, or into action values."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from bray_algo.distributions import categorical
from bray_algo.networks.attention import check_present
from bray_algo.networks.mlp import mlp


class PointerHead(nn.Module):
    """Head that points at one of the entities present, by logits q · k_i / √size.

    Vinyals et al. 2015, "Pointer networks", with the dot products of Vaswani et al. 2017.

    Args:
        num_features: Number F of features of what points.
        entity_size: Features D of an entity.
        size: Features of queries and keys.

    Raises:
        ValueError: a number is not positive.

    Examples:
        >>> import torch
        >>> head = PointerHead(4, 3)
        >>> present = torch.tensor([[True, True, False]])
        >>> logits = head(torch.zeros(1, 4), torch.zeros(1, 3, 3), present).detach()
        >>> categorical.log_probs(logits).exp()
        tensor([[0.5000, 0.5000, 0.0000]])
    """

    def __init__(self, num_features: int, entity_size: int, size: int = 64) -> None:
        super().__init__()
        if min(num_features, entity_size, size) < 1:
            raise ValueError(
                "num_features, entity_size, size: expected positive numbers, "
                f"got {num_features}, {entity_size}, {size}"
            )
        self.query, self.key = nn.Linear(num_features, size), nn.Linear(entity_size, size)

    def forward(self, features: Tensor, entities: Tensor, present: Tensor) -> Tensor:
        """Map features `[B, F]` and entities `[B, N, D]`, `present` bool `[B, N]`, to `[B, N]`.

        The absent may hold anything, be it NaN, and have no chance.

        Raises:
            ValueError: shapes do not agree, or nobody is present in some row.
        """
        check_present(present, entities)
        keys = self.key(entities.masked_fill(~present.unsqueeze(-1), 0.0))
        query = self.query(features).unsqueeze(-1)
        # Scaled by √size, so that the first softmax is not all or nothing.
        logits = (keys @ query).squeeze(-1) / keys.shape[-1] ** 0.5
        return categorical.mask(logits, present)


class DuellingHead(nn.Module):
    """Action values as value and advantages: q = v + a − mean a.

    Wang et al. 2016, "Dueling network architectures for deep reinforcement learning", equation 9;
    with atoms, as in Rainbow (Hessel et al. 2018), the same for each atom.

    Args:
        num_features: Number F of features.
        num_actions: Number A of actions.
        num_atoms: Number Z of atoms of a distributional value; 1 is a plain value.
        hidden: Units of each stream's hidden layers.

    Raises:
        ValueError: a number is not positive.

    Examples:
        >>> import torch
        >>> DuellingHead(8, 3)(torch.zeros(2, 8)).shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        num_features: int,
        num_actions: int,
        num_atoms: int = 1,
        hidden: Sequence[int] = (),
    ) -> None:
        super().__init__()
        if min(num_actions, num_atoms) < 1:
            raise ValueError(
                f"num_actions, num_atoms: expected positive numbers, got {num_actions}, {num_atoms}"
            )
        self.num_atoms = num_atoms
        self.value = mlp([num_features, *hidden, num_atoms], nn.ReLU)
        self.advantage = mlp([num_features, *hidden, num_actions * num_atoms], nn.ReLU)

    def forward(self, features: Tensor) -> Tensor:
        """Map features `[B, F]` to values `[B, A]`, with atoms to `[B, A, Z]`."""
        advantage = self.advantage(features).unflatten(-1, (-1, self.num_atoms))
        value = self.value(features).unsqueeze(-2)
        # Without the mean taken off, value and advantage could trade any constant.
        q: Tensor = value + advantage - advantage.mean(-2, keepdim=True)
        return q.squeeze(-1) if self.num_atoms == 1 else q
