"""Implicit quantile Q-learning (IQN): a return's quantile at any level that is asked for.

The levels τ are drawn anew for each batch, so that no grid of them is learned by heart. Dabney et
al. 2018, "Implicit quantile networks for distributional reinforcement learning". The network gives
quantiles `[N, A, K]` at levels `[N, K]` (`networks.quantiles`); their mean over K is the value.
Targets are those of `qr_dqn.target`, of quantiles at K' levels that are drawn for themselves.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bray_algo.losses import qr_dqn
from bray_algo.losses.dqn import chosen
from bray_algo.losses.reductions import LossTerms, weighted_mean
from bray_algo.precision import wide
from bray_algo.validation.tensors import check_floats, check_rank, check_shape
from bray_algo.validation.values import check_finite, check_within

target = qr_dqn.target


def loss(
    quantiles: Tensor,
    levels: Tensor,
    action: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    huber: float = 1.0,
) -> tuple[Tensor, LossTerms]:
    """Return the quantile Huber loss of the actions taken, a weighted mean.

    Dabney et al. 2018, equation 3: Σᵢ meanⱼ |τᵢ − 1{u < 0}| L_κ(u) / κ, u = target_j − θ(τᵢ).

    Args:
        quantiles: Quantiles of the online network, `[N, A, K]`; K is usually 8 to 64.
        levels: Levels τ at which they are, 0 to 1, `[N, K]`.
        action: Actions taken, integers `[N]`.
        target: Quantiles as `target` gives them, `[N, K']`, a constant; K' may differ from K.
        weight: Importance weights of a prioritised replay, `[N]`; None is 1 for all.
        huber: κ, the size of an error from which on the loss is linear; usually 1. The larger, the
            more the quantiles are drawn together towards expectiles.

    Returns:
        The loss, and `td_error` (mean absolute error of the mean returns) and `q`.

    Raises:
        ValueError: shapes do not agree, or a level is not within 0 to 1.
    """
    rows, theta = _rows(quantiles, levels, action, target, huber)
    with torch.no_grad():
        error = (wide(target).mean(-1) - theta.mean(-1)).abs().mean()
        terms = {"td_error": error, "q": theta.mean()}
    return weighted_mean(rows, weight), terms


def row_losses(
    quantiles: Tensor, levels: Tensor, action: Tensor, target: Tensor, *, huber: float = 1.0
) -> Tensor:
    """Return each row's loss `[N]` without gradient, to be used as its priority."""
    return _rows(quantiles, levels, action, target, huber)[0].detach()


def _rows(
    quantiles: Tensor, levels: Tensor, action: Tensor, target: Tensor, huber: float
) -> tuple[Tensor, Tensor]:
    """Return the loss of each row `[N]`, and the chosen actions' quantiles `[N, K]`."""
    check_rank("quantiles", quantiles, "N, A, K")
    check_rank("target", target, "N, K")
    check_shape("target", target, (len(quantiles), target.shape[1]))
    check_shape("levels", levels, (len(quantiles), quantiles.shape[2]))
    check_floats("quantiles", quantiles)
    check_finite(levels=levels)
    check_within(0.0, 1.0, levels=levels)
    theta = wide(chosen(quantiles, action))
    check_finite(quantiles=theta, target=target)
    return qr_dqn.quantile_huber(theta, levels.to(theta), target, huber) / huber, theta
