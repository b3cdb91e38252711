"""Quantile regression Q-learning (QR-DQN): a return's distribution as K quantiles.

Unlike C51 it needs no range of returns. Dabney et al. 2018, "Distributional reinforcement learning
with quantile regression". The network gives quantiles `[N, A, K]`; the mean over K is the value.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bray_algo.losses.dqn import chosen, greedy, huber_error
from bray_algo.losses.reductions import LossTerms, weighted_mean
from bray_algo.precision import wide
from bray_algo.returns.targets import bootstrap, check_legal
from bray_algo.validation.scalars import check_count
from bray_algo.validation.tensors import check_floats, check_rank, check_shape
from bray_algo.validation.values import check_finite


def midpoints(num_quantiles: int) -> Tensor:
    """Return the quantiles' levels τ̂ `[K]`, (2i + 1) / 2K (Dabney et al. 2018, lemma 2).

    Raises:
        ValueError: no quantiles, or no whole number of them.
    """
    check_count("num_quantiles", num_quantiles)
    return (torch.arange(num_quantiles) + 0.5) / num_quantiles


def target(
    next_quantiles: Tensor,
    reward: Tensor,
    discount: Tensor,
    *,
    next_online_quantiles: Tensor | None = None,
    next_legal: Tensor | None = None,
) -> Tensor:
    """Return the quantiles r + d θ'(s', a') `[N, K]` of the greedy next action, without gradient.

    Dabney et al. 2018, Algorithm 1.

    Args:
        next_quantiles: Quantiles of the target network at the next observation, `[N, A, K]`.
        reward: Reward r, or the discounted sum of n rewards, `[N]`.
        discount: γⁿ, or 0 where the episode terminated, `[N]`: see `targets.discount`.
        next_online_quantiles: Quantiles of the online network there, `[N, A, K]`: it then chooses
            the action (double). None: the target network chooses.
        next_legal: Actions to choose among, bool `[N, A]`; a row without any needs discount 0.

    Raises:
        ValueError: shapes do not agree; every function of this file refuses that.
    """
    check_rank("next_quantiles", next_quantiles, "N, A, K")
    check_floats("next_quantiles", next_quantiles)
    check_shape("reward", reward, next_quantiles.shape[:1])
    check_shape("discount", discount, next_quantiles.shape[:1])
    if next_legal is not None:
        check_legal(next_legal, next_quantiles, discount)
    if next_online_quantiles is not None:
        check_shape("next_online_quantiles", next_online_quantiles, next_quantiles.shape)
    chooser = next_quantiles if next_online_quantiles is None else next_online_quantiles
    following = chosen(next_quantiles, greedy(wide(chooser).mean(-1), next_legal))
    return bootstrap(
        reward[:, None].expand_as(following),
        discount[:, None].expand_as(following),
        following,
        name="next_quantiles",
    )


def loss(
    quantiles: Tensor,
    action: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    huber: float = 1.0,
) -> tuple[Tensor, LossTerms]:
    """Return the quantile Huber loss of the actions taken, a weighted mean.

    Dabney et al. 2018, equation 10 and Algorithm 1: Σᵢ meanⱼ |τ̂ᵢ − 1{u < 0}| L_κ(u),
    u = target_j − θᵢ.

    Args:
        quantiles: Quantiles of the online network, `[N, A, K]`; K is usually 32 to 200.
        action: Actions taken, integers `[N]`.
        target: Quantiles as `target` gives them, `[N, K']`, a constant; K' may differ from K.
        weight: Importance weights of a prioritised replay, `[N]`; None is 1 for all.
        huber: κ, the size of an error from which on the loss is linear; usually 1. The larger, the
            more the quantiles are drawn together towards expectiles.

    Returns:
        The loss, and `td_error` (mean absolute error of the mean returns) and `q`.
    """
    rows, theta = _rows(quantiles, action, target, huber)
    with torch.no_grad():
        error = (wide(target).mean(-1) - theta.mean(-1)).abs().mean()
        terms = {"td_error": error, "q": theta.mean()}
    return weighted_mean(rows, weight), terms


def row_losses(quantiles: Tensor, action: Tensor, target: Tensor, *, huber: float = 1.0) -> Tensor:
    """Return each row's loss `[N]` without gradient, to be used as its priority."""
    return _rows(quantiles, action, target, huber)[0].detach()


def _rows(quantiles: Tensor, action: Tensor, target: Tensor, huber: float) -> tuple[Tensor, Tensor]:
    """Return the loss of each row `[N]`, and the chosen actions' quantiles `[N, K]`."""
    check_rank("quantiles", quantiles, "N, A, K")
    check_rank("target", target, "N, K")
    check_shape("target", target, (len(quantiles), target.shape[1]))
    check_floats("quantiles", quantiles)
    theta = wide(chosen(quantiles, action))
    check_finite(quantiles=theta, target=target)
    level = midpoints(theta.shape[1]).to(theta).expand_as(theta)
    return quantile_huber(theta, level, target, huber), theta


def quantile_huber(theta: Tensor, level: Tensor, target: Tensor, huber: float) -> Tensor:
    """Return Σᵢ meanⱼ |τᵢ − 1{u < 0}| L_κ(u), u = target_j − θᵢ, of each row, `[N]`.

    Args:
        theta: Quantiles θ, `[N, K]`.
        level: Their levels τ, `[N, K]`.
        target: Samples or quantiles that they are drawn to, `[N, K']`, a constant.
        huber: κ, the size of an error from which on the loss is linear.
    """
    error = target.detach()[:, None, :] - theta[:, :, None]  # [N, K, K']
    # The asymmetry makes quantiles: errors upwards weigh τ, those downwards 1 − τ.
    pull = (level[:, :, None] - (error.detach() < 0).to(theta.dtype)).abs()
    return (pull * huber_error(error, huber)).mean(2).sum(1)
