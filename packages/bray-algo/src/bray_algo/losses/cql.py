"""Conservative Q-learning, over flat batches `[N]`: values of what nobody did are pressed down.

Kumar et al. 2020, "Conservative Q-learning for offline reinforcement learning" (arXiv 2006.04779),
the variant CQL(H). Its loss is α times a gap of this file beside the loss of the values themselves,
½ (Q − y)² (equation 4): `dqn.loss` for a choice, `sac.critic_loss` for reals.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bray_algo.losses import dqn
from bray_algo.precision import wide
from bray_algo.validation.tensors import check_flags, check_rank, check_shape
from bray_algo.validation.values import check_finite


def choice_gap(q: Tensor, action: Tensor, legal: Tensor | None = None) -> Tensor:
    """Return the mean of log Σ_a exp Q(s, a) − Q(s, a*) (equation 4), for a single choice.

    Its gradient lowers the values of likely actions and raises that of the recorded one.

    Args:
        q: Action values, `[N, A]`.
        action: Recorded actions a*, integers `[N]`.
        legal: Legal actions, bool `[N, A]`; None is all.

    Raises:
        ValueError: shapes do not agree.
    """
    check_rank("q", q, "N, A")
    recorded = wide(dqn.chosen(q, action))
    if legal is not None:
        check_flags("legal", legal, q.shape)
        check_shape("legal", legal, q.shape)
    check_finite(legal, q=q)
    q = wide(q)
    q = q if legal is None else q.masked_fill(~legal, -torch.inf)
    return (q.logsumexp(-1) - recorded).mean()


def sampled_gap(q: Tensor, sampled_q: Tensor, log_density: Tensor) -> Tensor:
    """Return Σ over the critics of the mean of log ∫ exp Q(s, a) da − Q(s, a*), for real actions.

    The integral is estimated from M sampled actions by importance: the mean of exp Q(s, a_i) over
    the density that a_i was drawn with. Half of them are usually uniform and half drawn from the
    policy (appendix F).

    Args:
        q: Values of the recorded actions by each of K critics, `[K, N]`.
        sampled_q: Values of M sampled actions, `[K, N, M]`.
        log_density: Log density that each of these was drawn with, `[N, M]`, constants.

    Raises:
        ValueError: shapes do not agree.
    """
    check_rank("sampled_q", sampled_q, "K, N, M")
    check_shape("q", q, sampled_q.shape[:2])
    check_shape("log_density", log_density, sampled_q.shape[1:])
    check_finite(q=q, sampled_q=sampled_q, log_density=log_density)
    terms = wide(sampled_q) - wide(log_density).detach()
    integral = terms.logsumexp(-1) - math.log(terms.shape[-1])
    return (integral - wide(q)).mean(-1).sum()
