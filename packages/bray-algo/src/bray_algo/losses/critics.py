"""Ensembles of critics `[K, N]`: what SAC and TD3 share."""

from __future__ import annotations

from torch import Tensor

from bray_algo.losses.reductions import LossTerms, weighted_mean
from bray_algo.precision import wide
from bray_algo.validation.tensors import check_numbers, check_rank, check_shape
from bray_algo.validation.values import check_finite


def critic_loss(
    q: Tensor, target: Tensor, *, weight: Tensor | None = None
) -> tuple[Tensor, LossTerms]:
    """Return Σ over the critics of the mean squared error (y − Q_k)².

    Fujimoto et al. 2018, "Addressing function approximation error in actor-critic methods",
    Algorithm 1; half of it is J_Q of Haarnoja et al. 2018.

    Args:
        q: Value of the actions taken by each of K critics, `[K, N]`; usually two.
        target: y, the same for all critics, `[N]`, a constant.
        weight: Importance weights of a prioritised replay, `[N]`; None is 1 for all.

    Returns:
        The loss, and `td_error` (mean of absolute values) and `q`. For new priorities of a
        prioritised replay see `td_error`.

    Raises:
        ValueError: shapes do not agree; every function of this file refuses that.
    """
    error = _error(q, target)
    terms = {"td_error": error.detach().abs().mean(), "q": wide(q).detach().mean()}
    return weighted_mean(error.square().sum(0), weight), terms


def td_error(q: Tensor, target: Tensor) -> Tensor:
    """Return the mean over the critics of |y − Q_k|, `[N]`, without gradient."""
    return _error(q, target).detach().abs().mean(0)


def lowest(q: Tensor) -> Tensor:
    """Return min_k Q_k `[N, …]` from `[K, N, …]`: clipped double Q (Fujimoto et al. 2018, eq. 10).

    An actor seeks out where a critic errs upwards; the lowest of several errs upwards less.
    """
    check_numbers("q", q)
    if q.ndim < 2 or not q.numel():
        raise ValueError(f"q: expected [K, N, …], not empty, got shape {tuple(q.shape)}")
    return q.amin(0)


def _error(q: Tensor, target: Tensor) -> Tensor:
    check_rank("q", q, "K, N")
    check_numbers("q", q)
    check_numbers("target", target)
    check_shape("target", target, q.shape[1:])
    check_finite(q=q, target=target)
    return wide(target).detach() - wide(q)
