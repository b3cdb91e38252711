"""Behaviour cloning of any action, and of the better part of the demonstrations.

`bray_algo.behaviour_cloning_loss` is for one categorical action; these take any distribution by its
log probabilities `[N]`, or a deterministic policy by its actions `[N, D]`. A cloned policy knows
the states of its demonstrations alone: small errors take it where nobody showed it what to do.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bray_algo.losses.dqn import huber_error
from bray_algo.losses.reductions import (
    LossTerms,
    masked,
    masked_mean,
    weighted_mean,
)
from bray_algo.precision import wide
from bray_algo.validation.scalars import check_positive
from bray_algo.validation.switch import is_validated
from bray_algo.validation.tensors import (
    check_columns,
    check_flags,
    check_floats,
    check_numbers,
    check_rank,
    check_shape,
    check_tensor,
)
from bray_algo.validation.values import check_action, check_finite


def likelihood_loss(
    log_prob: Tensor, *, weight: Tensor | None = None, valid: Tensor | None = None
) -> tuple[Tensor, LossTerms]:
    """Return the mean of −w log π(a|s) over demonstrated actions.

    Pomerleau 1989, "ALVINN"; with `advantage_weight` it is advantage-weighted regression, with
    `advantage_filter` only what gained counts.

    Args:
        log_prob: Log probability of the demonstrated actions, `[N]`, from any distribution.
        weight: Weight of each demonstration, `[N]`, a constant; None is 1 for all.
        valid: Samples that count, bool `[N]`; None is all.

    Returns:
        The loss, and `log_prob`, its unweighted mean, and `weight`, the mean of the weights.

    Raises:
        ValueError: shapes do not agree; every function of this file refuses that.
    """
    check_columns(log_prob, weight=weight)
    check_flags("valid", valid, log_prob.shape)
    check_finite(valid, log_prob=log_prob, weight=weight)
    weight = torch.ones_like(log_prob) if weight is None else weight
    log_prob, weight = masked(valid, log_prob, weight.detach())
    terms = {
        "log_prob": masked_mean(log_prob.detach(), valid),
        "weight": masked_mean(weight, valid),
    }
    return weighted_mean(-log_prob, weight, valid), terms


def regression_loss(
    action: Tensor,
    demonstrated: Tensor,
    *,
    weight: Tensor | None = None,
    huber: float | None = None,
) -> tuple[Tensor, LossTerms]:
    """Return the mean over N of w Σ_d (a_d − a*_d)², or of twice the Huber loss.

    Args:
        action: Action of a deterministic policy, or mean of a stochastic one, `[N, D]`.
        demonstrated: Demonstrated action a*, `[N, D]`, a constant.
        weight: Weight of each demonstration, `[N]`, a constant; None is 1 for all.
        huber: Size of an error from which on the loss is linear, so that outliers pull less, in
            units of the action; None is square everywhere.

    Returns:
        The loss, and `absolute_error`, the mean of |a_d − a*_d|.
    """
    check_rank("action", action, "N, D")
    check_numbers("action", action)
    check_numbers("demonstrated", demonstrated)
    check_shape("demonstrated", demonstrated, action.shape)
    check_finite(action=action, demonstrated=demonstrated)
    error = wide(action) - wide(demonstrated).detach()
    # Twice the Huber loss, so that small errors count the same with and without it.
    rows = error.square() if huber is None else 2 * huber_error(error, huber)
    return weighted_mean(rows.sum(-1), weight), {"absolute_error": error.detach().abs().mean()}


def smoothed_loss(
    log_probs: Tensor, action: Tensor, legal: Tensor, *, smoothing: float = 0.05
) -> tuple[Tensor, LossTerms]:
    """Return the cross-entropy with softened labels: 1 − ε on a*, ε shared by all legal actions.

    Szegedy et al. 2016, "Rethinking the inception architecture", §7. A cloned policy that stays
    open to other actions can still be improved by reinforcement.

    Args:
        log_probs: Log probability of every action, `[N, A]` (`categorical.log_probs`).
        action: Demonstrated actions, integers `[N]`.
        legal: Legal actions, bool `[N, A]`; a demonstrated action must be one.
        smoothing: ε, 0 to below 1; usually 0.01 to 0.1. Too large forgets the demonstrator.

    Returns:
        The loss, and `accuracy` of the most likely action.
    """
    check_rank("log_probs", log_probs, "N, A")
    check_floats("log_probs", log_probs)
    check_action("action", action, log_probs.shape[:1], log_probs.shape[1])
    check_tensor("legal", legal)
    check_flags("legal", legal, log_probs.shape)
    if not 0.0 <= smoothing < 1.0:
        raise ValueError(f"smoothing: expected 0 to below 1, got {smoothing}")
    index = action.long()[:, None]
    if is_validated(legal) and not bool(legal.gather(1, index).all()):
        raise ValueError("legal: expected each demonstrated action to be legal, got one that isn't")
    check_finite(legal, log_probs=log_probs)
    log_probs = wide(log_probs)
    # Illegal actions are left out: a share of their −1e9 would drown all else.
    shared = log_probs.masked_fill(~legal, 0.0).sum(-1) / legal.sum(-1)
    rows = -(1 - smoothing) * log_probs.gather(1, index).squeeze(1) - smoothing * shared
    accuracy = (log_probs.argmax(-1) == action).to(rows.dtype).mean()
    return rows.mean(), {"accuracy": accuracy}


def advantage_weight(advantage: Tensor, *, temperature: float, maximum: float = 20.0) -> Tensor:
    """Return w = min(exp(A / β), w_max), `[N]`, without gradient: clone what went well.

    Peng et al. 2019, "Advantage-weighted regression", Algorithm 1; Wang et al. 2018, "Exponentially
    weighted imitation learning" (MARWIL).

    Args:
        advantage: Advantage A of the demonstrated actions, `[N]`.
        temperature: β in units of the advantage, usually 0.05 to 1 where advantages have deviation
            1. Small ones learn from the few best actions alone; large ones clone everything alike.
        maximum: Greatest weight w_max, usually 20; it keeps one sample from ruling a batch.

    Raises:
        ValueError: a number is not positive.
    """
    check_positive("temperature", temperature)
    check_positive("maximum", maximum)
    check_numbers("advantage", advantage)
    advantage = wide(advantage)
    limit = torch.tensor(maximum, dtype=advantage.dtype, device=advantage.device)
    # The bound is taken in the exponent: e^(A / β) may overflow before it is clipped.
    return torch.minimum(advantage.detach() / temperature, limit.log()).exp()


def advantage_filter(advantage: Tensor) -> Tensor:
    """Return 1 where A > 0, else 0, `[N]`: clone what did better than the policy would.

    The Q-filter of Nair et al. 2018, "Overcoming exploration in reinforcement learning with
    demonstrations". As the mean of `likelihood_loss` is over all samples, the loss fades as the
    policy overtakes its demonstrator.

    Args:
        advantage: Demonstrated return less V, or Q of the demonstrated action less Q of the
            policy's own, `[N]`.
    """
    check_numbers("advantage", advantage)
    return (advantage > 0).to(wide(advantage).dtype)
