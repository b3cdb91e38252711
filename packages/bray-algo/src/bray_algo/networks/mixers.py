"""Mixers of agents' values into one joint value: VDN and QMIX, with their loss.

Shapes: M samples, N agents, A actions, S state features. Both keep the joint value increasing in
each agent's own, so that each agent's own greedy action is a part of the joint one.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from bray_algo.columns import (
    Terms,
    check_action,
    check_flags,
    check_numbers,
    check_rank,
    check_shape,
    keep,
    mean,
)
from bray_algo.losses import dqn
from bray_algo.precision import wide
from bray_algo.validation import check_finite


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
        num_agents: N.
        state_size: S.
        hidden: units of the mixing layer.

    Raises:
        ValueError: a size is not positive.

    Examples:
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
        weight_1 = self.weight_1(state).abs().reshape(-1, self.num_agents, self.hidden)
        mixed = F.elu((q.unsqueeze(1) @ weight_1).squeeze(1) + self.bias_1(state))
        weight_2: Tensor = self.weight_2(state).abs()
        bias_2: Tensor = self.bias_2(state).squeeze(-1)
        return (weight_2 * mixed).sum(-1) + bias_2


def chosen(q: Tensor, action: Tensor) -> Tensor:
    """Return the agents' values `[M, N]` of their actions `[M, N]`, from values `[M, N, A]`.

    Raises:
        ValueError: shapes do not agree; so in all of this file.
    """
    check_rank("q", q, "M, N, A")
    check_action("action", action, q.shape[:2], q.shape[2])
    return dqn.chosen(q.flatten(0, 1), action.flatten()).reshape(action.shape)


def greedy(q: Tensor, legal: Tensor | None = None) -> Tensor:
    """Return each agent's best action `[M, N]` by values `[M, N, A]`, among the `legal` if given.

    An agent without a legal action (one that is out of the game) gets action 0.
    """
    check_rank("q", q, "M, N, A")
    return dqn.greedy(q, legal)


def joint_loss(
    joint_q: Tensor, target: Tensor, *, valid: Tensor | None = None
) -> tuple[Tensor, Terms]:
    """Return the mean squared error of joint values (Rashid et al. 2018, equation 6).

    The target is `targets.bootstrap(reward, discount, next_joint_q)`, where the target mixer and
    the target agents give `next_joint_q`, at the online agents' `greedy` actions (double).

    Args:
        joint_q: of the mixer, at the actions taken, `[M]`.
        target: y, `[M]`, a constant.
        valid: which samples count, bool `[M]`; None: all. The others may hold anything.

    Returns:
        The loss, and `td_error` (mean of absolute values) and `q`.
    """
    check_rank("joint_q", joint_q, "M")
    check_numbers("joint_q", joint_q)
    check_numbers("target", target)
    check_shape("target", target, joint_q.shape)
    check_flags("valid", valid, joint_q.shape)
    check_finite(valid, joint_q=joint_q, target=target)
    error = wide(target).detach() - wide(joint_q)
    terms = {"td_error": mean(error.detach().abs(), valid), "q": mean(joint_q.detach(), valid)}
    (error,) = keep(valid, error)
    return mean(error.square(), valid), terms
