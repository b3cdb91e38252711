"""Truncated quantile critics (TQC), over flat batches `[N]` and K critics of M quantiles each.

Kuznetsov et al. 2020, "Controlling overestimation bias with truncated mixture of continuous
distributional quantile critics" (arXiv 2005.04269); equations are numbered as there. Each critic
estimates the distribution of the return by M quantiles. The greatest ones of all critics together,
where they err upwards most, are left out of the target. The temperature learns by
`sac.temperature_loss`.
"""

from __future__ import annotations

from torch import Tensor

from bray_algo.losses import sac
from bray_algo.losses.dqn import huber_error
from bray_algo.losses.qr_dqn import midpoints
from bray_algo.losses.reductions import LossTerms, weighted_mean
from bray_algo.precision import wide
from bray_algo.returns.targets import bootstrap
from bray_algo.validation.scalars import check_not_negative
from bray_algo.validation.tensors import check_floats, check_rank, check_shape
from bray_algo.validation.values import check_finite


def target(
    next_quantiles: Tensor,
    next_log_prob: Tensor,
    reward: Tensor,
    discount: Tensor,
    *,
    alpha: Tensor | float,
    dropped: int = 2,
) -> Tensor:
    """Return the atoms r + d (z_(i) − α log π(a'|s')), `[N, K (M − dropped)]`, without gradient.

    Equations 8 to 10: z_(1) ≤ z_(2) ≤ … are the quantiles of all critics in order, of which the
    K · dropped greatest are left out.

    Args:
        next_quantiles: Quantiles by the target critics, `[K, N, M]`, of an action drawn at the next
            observation from the current policy.
        next_log_prob: Log probability log π of that action, `[N]`.
        reward: Reward r, or the discounted sum of n rewards, `[N]`.
        discount: γⁿ, or 0 where the episode terminated, `[N]`: see `targets.discount`.
        alpha: Temperature α, 0 or more, one number, a constant: see `sac.actor_loss`.
        dropped: Quantiles left out for each critic, below M. More counter overestimation more, and
            in the end underestimate: 0 to 5 of 25, usually 2.

    Raises:
        ValueError: shapes do not agree, as in all of this file, or nothing would be left.
    """
    check_rank("next_quantiles", next_quantiles, "K, N, M")
    check_floats("next_quantiles", next_quantiles)
    num_critics, num_rows, num_quantiles = next_quantiles.shape
    check_not_negative("dropped", dropped)
    if int(dropped) != dropped or dropped >= num_quantiles:
        raise ValueError(f"dropped: expected a whole number below {num_quantiles}, got {dropped}")
    check_shape("next_log_prob", next_log_prob, (num_rows,))
    check_shape("reward", reward, (num_rows,))
    check_shape("discount", discount, (num_rows,))
    check_finite(discount != 0, next_log_prob=next_log_prob)
    # Here, not in `bootstrap`: what is left out would hide an infinite one.
    check_finite((discount != 0)[:, None], next_quantiles=next_quantiles)
    pooled = wide(next_quantiles).movedim(0, 1).reshape(num_rows, -1)  # [K, N, M] -> [N, K M]
    kept = pooled.sort(-1).values[:, : num_critics * (num_quantiles - int(dropped))]
    # The worth of being random there, which makes the value "soft".
    soft = kept - sac.constant(alpha) * wide(next_log_prob)[:, None]
    return bootstrap(
        reward[:, None].expand_as(soft),
        discount[:, None].expand_as(soft),
        soft,
        name="next_quantiles",
    )


def critic_loss(
    quantiles: Tensor, target: Tensor, *, weight: Tensor | None = None, huber: float = 1.0
) -> tuple[Tensor, LossTerms]:
    """Return J_Z, summed over the critics, a weighted mean over the batch.

    Equations 12 and 13: the loss of a critic is the mean over its M quantiles θ_m and the atoms y_i
    of |τ̂_m − 1{u < 0}| L_κ(u), u = y_i − θ_m.

    Args:
        quantiles: Quantiles of the actions taken by each critic, `[K, N, M]`; M is usually 25.
        target: Atoms as `target` gives them, `[N, I]`, a constant.
        weight: Importance weights of a prioritised replay, `[N]`; None is 1 for all.
        huber: κ, the size of an error from which on the loss is linear; usually 1.

    Returns:
        The loss, and `td_error` (mean absolute error of the mean returns) and `q`.
    """
    check_rank("quantiles", quantiles, "K, N, M")
    check_floats("quantiles", quantiles)
    check_rank("target", target, "N, I")
    check_shape("target", target, (quantiles.shape[1], target.shape[1]))
    check_finite(quantiles=quantiles, target=target)
    theta, atoms = wide(quantiles), wide(target).detach()
    error = atoms[:, None, :] - theta[..., None]  # [K, N, M, I]
    level = midpoints(theta.shape[-1]).to(theta)[:, None]
    # The asymmetry makes quantiles: errors upwards weigh τ, those downwards 1 − τ.
    pull = (level - (error.detach() < 0).to(theta.dtype)).abs()
    rows = (pull * huber_error(error, huber)).mean((2, 3)).sum(0)
    mean = theta.detach().mean(-1)
    terms = {"td_error": (atoms.mean(-1) - mean).abs().mean(), "q": mean.mean()}
    return weighted_mean(rows, weight), terms


def actor_loss(
    quantiles: Tensor, log_prob: Tensor, *, alpha: Tensor | float
) -> tuple[Tensor, LossTerms]:
    """Return J_π, the mean of α log π(a|s) − the mean of all quantiles, none left out (eq. 14).

    Args:
        quantiles: Quantiles of actions drawn with gradient from the current policy, `[K, N, M]`.
            Freeze the critics' parameters, or drop the gradient that they get.
        log_prob: Log probability log π of those actions, `[N]`.
        alpha: Temperature α: see `sac.actor_loss`.

    Returns:
        The loss, and `entropy` (mean of −log π) and `q`.
    """
    check_rank("quantiles", quantiles, "K, N, M")
    check_floats("quantiles", quantiles)
    check_shape("log_prob", log_prob, quantiles.shape[1:2])
    check_finite(quantiles=quantiles, log_prob=log_prob)
    q, log_prob = wide(quantiles).mean((0, 2)), wide(log_prob)
    loss = (sac.constant(alpha) * log_prob - q).mean()
    return loss, {"entropy": -log_prob.detach().mean(), "q": q.detach().mean()}
