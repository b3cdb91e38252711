"""The loss of QMIX and VDN: Q-learning of one joint value for a team.

Shapes: M samples, N agents, A actions. The mixers that make the joint value of the agents' own are
networks: `networks.mixers`.
"""

from __future__ import annotations

from torch import Tensor

from bray_algo.losses import dqn
from bray_algo.losses.reductions import LossTerms, masked, masked_mean
from bray_algo.precision import wide
from bray_algo.validation.tensors import check_flags, check_numbers, check_rank, check_shape
from bray_algo.validation.values import check_action, check_finite


def chosen(q: Tensor, action: Tensor) -> Tensor:
    """Return the agents' values `[M, N]` of their actions `[M, N]`, from values `[M, N, A]`.

    Raises:
        ValueError: shapes do not agree; every function of this file refuses that.
    """
    check_rank("q", q, "M, N, A")
    check_action("action", action, q.shape[:2], q.shape[2])
    # Every agent of every sample is a row of its own.
    return dqn.chosen(q.flatten(0, 1), action.flatten()).reshape(action.shape)


def greedy(q: Tensor, legal: Tensor | None = None) -> Tensor:
    """Return each agent's best action `[M, N]` by values `[M, N, A]`, among the `legal` if given.

    An agent without a legal action (one that is out of the game) gets action 0.
    """
    check_rank("q", q, "M, N, A")
    return dqn.greedy(q, legal)


def joint_loss(
    joint_q: Tensor, target: Tensor, *, valid: Tensor | None = None
) -> tuple[Tensor, LossTerms]:
    """Return the mean squared error of joint values (Rashid et al. 2018, equation 6).

    The target is `targets.bootstrap(reward, discount, next_joint_q)`, where the target mixer and
    the target agents give `next_joint_q`, at the online agents' `greedy` actions (double).

    Args:
        joint_q: Joint value by the mixer of the actions taken, `[M]`.
        target: y, `[M]`, a constant.
        valid: Samples that count, bool `[M]`; None is all. The others may hold anything.

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
    terms = {
        "td_error": masked_mean(error.detach().abs(), valid),
        "q": masked_mean(joint_q.detach(), valid),
    }
    (error,) = masked(valid, error)
    return masked_mean(error.square(), valid), terms
