"""Critics that are default perceptrons, with their gradients by hand: what SAC and TD3 share.

A step by hand is for policies and critics that read vectors by plain perceptrons, in float32 on the
CPU; their trainers take it there, and everything else goes through autograd. Values and gradients
are the same but for the last bits. Losses are those of `bray_algo.losses`, with their refusals.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bray.policies.continuous import Critics
from bray.policies.trunks import FlatNetwork
from bray_algo.gradients.perceptron import (
    PerceptronGradients,
    is_perceptron,
    is_trained_in_float32,
)


class PerceptronCritics:
    """Judges a batch, and goes back to the critics' weights or to the actions that they judged.

    Args:
        critics: what `fits` approves of.
    """

    def __init__(self, critics: Critics) -> None:
        members: Any = critics.members
        self._members = [PerceptronGradients(member) for member in members]

    def judge(self, seen: Tensor, action: Tensor) -> Tensor:
        """Map what is seen `[N, D]` and actions `[N, E]` to values `[K, N]`."""
        x = torch.cat([seen, action], -1)
        return torch.stack([member.forward(x).squeeze(-1) for member in self._members])

    def judge_by_first(self, seen: Tensor, action: Tensor) -> Tensor:
        """Map the same to the values `[N]` of the first critic."""
        return self._members[0].forward(torch.cat([seen, action], -1)).squeeze(-1)

    def backward(self, slopes: Tensor) -> None:
        """Write the gradients of all weights by those `[K, N]` of the values last judged."""
        for member, slope in zip(self._members, slopes, strict=True):
            member.backward(slope.unsqueeze(-1))

    def of_action(self, slopes: Tensor, size: int) -> Tensor:
        """Return the gradient `[N, size]` of the actions last judged.

        Args:
            slopes: gradients of the first critics' values, `[K, N]`.
            size: numbers of an action.
        """
        parts = [
            member.input_gradient(slope.unsqueeze(-1), size)
            for member, slope in zip(self._members, slopes, strict=False)
        ]
        return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)


def slopes_of_lowest(q: Tensor) -> Tensor:
    """Return the gradients `[K, N]` of Σ min_k of values; critics that agree share it."""
    is_lowest = (q == q.amin(0)).to(q.dtype)
    return is_lowest / is_lowest.sum(0)


def fits(module: nn.Module, policy: type[nn.Module]) -> bool:
    """Return whether steps on policy and critics of a trainer can be taken by hand.

    Args:
        module: all that is trained, by name.
        policy: class that the policy must be of.
    """
    parts: Any = module
    if type(parts["policy"]) is not policy or type(parts["critics"]) is not Critics:
        return False
    networks = [parts["policy"].body, *parts["critics"].members]
    return is_trained_in_float32(module) and all(
        type(network) is FlatNetwork and is_perceptron(network) for network in networks
    )
