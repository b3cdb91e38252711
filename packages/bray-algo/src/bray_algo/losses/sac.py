"""Soft actor-critic for continuous actions, over flat batches `[N]` and K critics.

Haarnoja et al. 2018, "Soft actor-critic algorithms and applications" (arXiv 1812.05905); equations
are numbered as there. Actions and their log probabilities come from any distribution that can be
sampled with gradient; a squashed Gaussian's log probability includes its tanh (appendix C). For
discrete actions see `sac_discrete`.
"""

from __future__ import annotations

import math

from torch import Tensor

from bray_algo.losses import critics
from bray_algo.losses.reductions import LossTerms
from bray_algo.precision import wide
from bray_algo.returns.targets import bootstrap
from bray_algo.validation.scalars import check_not_negative, check_number
from bray_algo.validation.tensors import check_numbers, check_rank, check_shape
from bray_algo.validation.values import check_finite, check_within


def target(
    next_q: Tensor,
    next_log_prob: Tensor,
    reward: Tensor,
    discount: Tensor,
    *,
    alpha: Tensor | float,
) -> Tensor:
    """Return r + d (min_k Q'_k(s', a') − α log π(a'|s')), `[N]`, without gradient.

    Equations 2, 3 and 5, with the lowest of the critics (Algorithm 1).

    Args:
        next_q: Values by the target critics, `[K, N]`, of an action drawn at the next observation
            from the current policy.
        next_log_prob: Log probability log π of that action, `[N]`.
        reward: Reward r, or the discounted sum of n rewards, `[N]`.
        discount: γⁿ, or 0 where the episode terminated, `[N]`: see `targets.discount`.
        alpha: Temperature α, 0 or more, one number, a constant: see `temperature_loss`.

    Raises:
        ValueError: shapes do not agree; every function of this file refuses that.
    """
    check_rank("next_q", next_q, "K, N")
    check_shape("next_log_prob", next_log_prob, next_q.shape[1:])
    check_shape("discount", discount, next_log_prob.shape)
    check_finite(discount != 0, next_q=next_q, next_log_prob=next_log_prob)
    # The worth of being random there, which makes the value "soft".
    entropy = -constant(alpha) * wide(next_log_prob)
    return bootstrap(reward, discount, wide(critics.lowest(next_q)) + entropy)


def critic_loss(
    q: Tensor, target: Tensor, *, weight: Tensor | None = None
) -> tuple[Tensor, LossTerms]:
    """Return J_Q, Σ over the critics of the mean of ½ (Q_k − y)² (equation 5).

    Arguments and terms as in `critics.critic_loss`.
    """
    loss, terms = critics.critic_loss(q, target, weight=weight)
    return 0.5 * loss, terms


def actor_loss(q: Tensor, log_prob: Tensor, *, alpha: Tensor | float) -> tuple[Tensor, LossTerms]:
    """Return J_π, the mean of α log π(a|s) − min_k Q_k(s, a) (equations 7 and 9).

    Args:
        q: Values of actions drawn with gradient from the current policy, `[K, N]`. Freeze the
            critics' parameters, or drop the gradient that they get.
        log_prob: Log probability log π of those actions, `[N]`.
        alpha: Temperature α, the worth of a nat of entropy in units of reward. Too large keeps the
            policy random, too small lets it settle before it has explored; usually it is learned.

    Returns:
        The loss, and `entropy` (mean of −log π) and `q`.
    """
    check_rank("q", q, "K, N")
    check_shape("log_prob", log_prob, q.shape[1:])
    check_finite(q=q, log_prob=log_prob)
    # The lowest critic, as the actor would seek out where one of them errs upwards.
    low, log_prob = wide(critics.lowest(q)), wide(log_prob)
    loss = (constant(alpha) * log_prob - low).mean()
    return loss, {"entropy": -log_prob.detach().mean(), "q": low.detach().mean()}


def temperature_loss(
    log_alpha: Tensor, log_prob: Tensor, *, target_entropy: float
) -> tuple[Tensor, LossTerms]:
    """Return J(α), the mean of −α (log π(a|s) + H̄) (equation 18), for a learned log α.

    It raises α where the policy's entropy is below the target, and lowers it above.

    Args:
        log_alpha: Parameter log α, a scalar; usually begins at 0.
        log_prob: Log probability of actions drawn from the current policy, `[N]`, a constant.
        target_entropy: Entropy H̄ to be kept, in nats; the paper's is −(number of action
            dimensions), for actions within ±1. Higher ones keep the policy noisy, lower ones let
            it stop exploring.

    Returns:
        The loss, and `alpha`.
    """
    check_numbers("log_alpha", log_alpha)
    check_number("target_entropy", target_entropy)
    if log_alpha.numel() != 1:
        raise ValueError(f"log_alpha: expected a scalar, got shape {tuple(log_alpha.shape)}")
    check_rank("log_prob", log_prob, "N")
    check_finite(log_alpha=log_alpha, log_prob=log_prob)
    alpha = wide(log_alpha).exp().squeeze()
    loss = -(alpha * (wide(log_prob).detach() + target_entropy)).mean()
    return loss, {"alpha": alpha.detach()}


def constant(alpha: Tensor | float) -> Tensor | float:
    """Return the temperature α without gradient.

    Raises:
        ValueError: it is negative, not finite, or not one number.
    """
    if not isinstance(alpha, Tensor):
        check_not_negative("alpha", alpha)
        return alpha
    if alpha.numel() != 1:
        raise ValueError(f"alpha: expected one number, got shape {tuple(alpha.shape)}")
    check_finite(alpha=alpha)
    check_within(0.0, math.inf, alpha=alpha)
    return alpha.detach().squeeze()
