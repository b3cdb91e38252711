"""Implicit Q-learning, over flat batches `[N]` and K critics: values of recorded actions alone.

Kostrikov et al. 2021, "Offline reinforcement learning with implicit Q-learning" (arXiv 2110.06169);
equations are numbered as there. No action is ever asked for that the data set does not hold: the
value of the best recorded action is an upper expectile of the values of all. The critics learn
towards `target` by `critics.critic_loss`.
"""

from __future__ import annotations

from torch import Tensor

from bray_algo.losses import cloning, critics
from bray_algo.losses.reductions import LossTerms
from bray_algo.precision import wide
from bray_algo.returns.targets import bootstrap
from bray_algo.validation.scalars import check_confidence, check_positive
from bray_algo.validation.tensors import check_columns, check_rank, check_shape
from bray_algo.validation.values import check_finite


def value_loss(
    value: Tensor, target_q: Tensor, *, expectile: float = 0.7
) -> tuple[Tensor, LossTerms]:
    """Return L_V, the mean of |τ − 1(u < 0)| u² with u = min_k Q'_k(s, a) − V(s) (equation 5).

    Args:
        value: Value V of the observation, `[N]`.
        target_q: Values of the recorded action by the target critics, `[K, N]`, constants.
        expectile: τ, between 0 and 1. 0.5 is the mean: the value of whoever recorded. Near 1 it is
            that of the best recorded action, and of the luckiest outcome. Usually 0.7 to 0.9.

    Returns:
        The loss, and `value`, the mean of V.

    Raises:
        ValueError: shapes do not agree, or τ is out of range.
    """
    check_confidence("expectile", expectile)
    error = advantage(value, target_q, detached=False)
    # Too low an estimate costs τ, too high a one 1 − τ: so V climbs towards the best Q.
    weight = (error < 0).to(error.dtype).sub(expectile).abs()
    return (weight * error.square()).mean(), {"value": wide(value).detach().mean()}


def advantage(value: Tensor, target_q: Tensor, *, detached: bool = True) -> Tensor:
    """Return min_k Q'_k(s, a) − V(s), `[N]`.

    Args:
        value: Value V of the observation, `[N]`.
        target_q: Values of the recorded action by the target critics, `[K, N]`, constants.
        detached: Whether it has no gradient in V either.

    Raises:
        ValueError: shapes do not agree.
    """
    check_rank("target_q", target_q, "K, N")
    check_shape("value", value, target_q.shape[1:])
    check_finite(value=value, target_q=target_q)
    found = wide(critics.lowest(target_q)).detach() - wide(value)
    return found.detach() if detached else found


def target(next_value: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
    """Return r + d V(s'), `[N]`, without gradient: what the critics are drawn to (equation 6).

    Args:
        next_value: Value V of the next observation, `[N]`.
        reward: Reward r, `[N]`.
        discount: γ, or 0 where the episode terminated, `[N]`: see `targets.discount`.

    Raises:
        ValueError: shapes do not agree.
    """
    return bootstrap(reward, discount, next_value)


def policy_loss(
    log_prob: Tensor,
    advantage: Tensor,
    *,
    inverse_temperature: float = 3.0,
    maximum: float = 100.0,
) -> tuple[Tensor, LossTerms]:
    """Return L_π, the mean of −min(exp(β A), w_max) log π(a|s) (equation 7).

    Args:
        log_prob: Log probability of the recorded actions, `[N]`.
        advantage: Advantage A of these actions, `[N]`, a constant: see `advantage`.
        inverse_temperature: β, in units of 1 / return. Small ones clone all actions alike; large
            ones the best alone, and few samples rule a batch. Usually 0.5 to 10.
        maximum: Greatest weight w_max of a sample, usually 100.

    Returns:
        The loss, and `log_prob` and `weight`, their means.

    Raises:
        ValueError: shapes do not agree, or a number is not positive.
    """
    check_positive("inverse_temperature", inverse_temperature)
    check_columns(log_prob, advantage=advantage)
    check_finite(advantage=advantage)
    weight = cloning.advantage_weight(
        advantage, temperature=1 / inverse_temperature, maximum=maximum
    )
    return cloning.likelihood_loss(log_prob, weight=weight)
