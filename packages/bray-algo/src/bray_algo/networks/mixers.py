"""Mixers of agents' values into one joint value: VDN and QMIX. Their loss is `losses.qmix`.

Shapes: M samples, N agents, S state features. Both keep the joint value increasing in
each agent's own, so that each agent's own greedy action is a part of the joint one.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from bray_algo.validation.tensors import (
    check_rank,
    check_shape,
)


def vdn(q: Tensor) -> Tensor:
    """Return the joint value Σ_n q_n `[M]` of agents' values `[M, N]`.

    Sunehag et al. 2018, "Value-decomposition networks for cooperative multi-agent learning", §3.
    """
    check_rank("q", q, "M, N")
    return q.sum(-1)


class QMix(nn.Module):
    """The mixing network of QMIX: weights that the state makes, none below 0.

    Rashid et al. 2018, "QMIX: monotonic value function factorisation for deep multi-agent
    reinforcement learning", §4 and figure 2.

    Args:
        num_agents: Number N of agents.
        state_size: Number S of features of the state.
        hidden: Units of the mixing layer, usually 32.

    Raises:
        ValueError: a size is not positive.

    Examples:
        >>> import torch
        >>> QMix(3, 5)(torch.zeros(2, 3), torch.zeros(2, 5)).shape
        torch.Size([2])
    """

    def __init__(self, num_agents: int, state_size: int, hidden: int = 32) -> None:
        super().__init__()
        if min(num_agents, state_size, hidden) < 1:
            raise ValueError(
                "num_agents, state_size, hidden: expected positive numbers, "
                f"got {num_agents}, {state_size}, {hidden}"
            )
        self.num_agents, self.state_size, self.hidden = num_agents, state_size, hidden
        self.weight_1 = nn.Linear(state_size, num_agents * hidden)
        self.bias_1 = nn.Linear(state_size, hidden)
        self.weight_2 = nn.Linear(state_size, hidden)
        self.bias_2 = nn.Sequential(nn.Linear(state_size, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, q: Tensor, state: Tensor) -> Tensor:
        """Map agents' values `[M, N]` and states `[M, S]` to the joint value `[M]`."""
        check_rank("q", q, "M, N")
        check_shape("q", q, (len(q), self.num_agents))
        check_shape("state", state, (len(q), self.state_size))
        # No weight below 0: the joint value grows with each agent's, so each may choose for itself.
        weight_1 = self.weight_1(state).abs().reshape(-1, self.num_agents, self.hidden)
        mixed = F.elu((q.unsqueeze(1) @ weight_1).squeeze(1) + self.bias_1(state))
        weight_2: Tensor = self.weight_2(state).abs()
        bias_2: Tensor = self.bias_2(state).squeeze(-1)
        return (weight_2 * mixed).sum(-1) + bias_2
