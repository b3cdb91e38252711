"""Categorical distributional Q-learning (C51): a return's distribution on K fixed atoms.

Learning the whole distribution of returns trains a network better than their mean alone. Bellemare
et al. 2017, "A distributional perspective on reinforcement learning". The network gives logits
`[N, A, K]`; the atoms' values are a support `[K]`, evenly spaced.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bray_algo.losses.dqn import chosen, greedy
from bray_algo.losses.reductions import LossTerms, weighted_mean
from bray_algo.precision import alike, wide
from bray_algo.returns.targets import check_legal
from bray_algo.returns.value_rescaling import rescale, unrescale
from bray_algo.validation.tensors import check_floats, check_rank, check_shape
from bray_algo.validation.values import check_finite


def atoms(low: float, high: float, num_atoms: int = 51) -> Tensor:
    """Return the support z `[K]`: evenly spaced values from `low` to `high`.

    Args:
        low: Least return that can be told, such as −10 for Atari with clipped rewards.
        high: Greatest one. Returns outside are cut to the ends; a range far too wide puts all
            mass on a few atoms.
        num_atoms: Number K of atoms, usually 51; more cost time and tell returns finer apart.

    Raises:
        ValueError: fewer than two atoms, or `high` is not above `low`, or one is not finite.
    """
    if not (num_atoms >= 2 and -math.inf < low < high < math.inf):
        raise ValueError(
            f"num_atoms, low, high: expected two atoms or more from low to a higher value, "
            f"got {num_atoms}, {low}, {high}"
        )
    return torch.linspace(low, high, num_atoms)


def q_values(logits: Tensor, support: Tensor) -> Tensor:
    """Return the mean returns Σ z p `[…]` of logits `[…, K]`.

    Raises:
        ValueError: shapes do not agree; every function of this file refuses that.
    """
    check_floats("logits", logits)
    check_shape("support", support, logits.shape[-1:])
    probability = _softmax(logits)
    return probability @ support.to(probability.dtype)


def project(
    probability: Tensor,
    reward: Tensor,
    discount: Tensor,
    support: Tensor,
    *,
    rescaling: float | None = None,
) -> Tensor:
    """Return the distribution of r + d Z on the support again, `[N, K]`.

    Bellemare et al. 2017, equation 7 and Algorithm 1: each atom's mass goes to its two neighbours
    in proportion to nearness, and what leaves the support goes to its ends. The mass is always
    kept, the mean where nothing leaves the support.

    Args:
        probability: Distribution of the next return Z, `[N, K]`; not read where the discount is 0.
        reward: Reward r, or the discounted sum of n rewards, `[N]`.
        discount: γⁿ, or 0 where the episode terminated, `[N]`: see `targets.discount`.
        support: Values of the atoms, `[K]`, evenly spaced, as `atoms` gives them.
        rescaling: ε of `value_rescaling`, where the atoms are values of h(Z): the distribution is
            then that of h(r + d h⁻¹(Z)), and a support of −20 to 20 reaches returns of ±420. None:
            the atoms are returns.
    """
    check_rank("probability", probability, "N, K")
    check_shape("reward", reward, probability.shape[:1])
    check_shape("discount", discount, probability.shape[:1])
    check_rank("support", support, "K")
    check_shape("support", support, probability.shape[1:])
    over = (discount == 0)[:, None]
    check_finite(reward=reward, discount=discount)
    check_finite(~over, probability=probability)
    probability, reward, discount, support = alike(probability, reward, discount, support)
    # After termination any distribution does: 0 times each atom is the same place.
    probability = probability.masked_fill(over, 1 / len(support))
    if rescaling is None:
        moved = reward[:, None] + discount[:, None] * support
    else:
        moved = reward[:, None] + discount[:, None] * unrescale(support, rescaling)
        moved = rescale(moved, rescaling)
    place = _place(moved, support)
    # The lower neighbour stops before the last atom: then both exist, and no mass gets lost there.
    # A NaN reward gives a NaN distribution, not an index that kills a GPU's context.
    lower = place.floor().clamp(max=len(support) - 2).nan_to_num(0.0)
    share = place - lower
    target = torch.zeros_like(probability)
    target = target.scatter_add(1, lower.long(), probability * (1 - share))
    return target.scatter_add(1, lower.long() + 1, probability * share)


def target(
    next_logits: Tensor,
    reward: Tensor,
    discount: Tensor,
    support: Tensor,
    *,
    next_online_logits: Tensor | None = None,
    next_legal: Tensor | None = None,
    rescaling: float | None = None,
) -> Tensor:
    """Return the target distribution `[N, K]` of the greedy next action, without gradient.

    Bellemare et al. 2017, Algorithm 1; with `next_online_logits` the double variant of Hessel et
    al. 2018, "Rainbow".

    Args:
        next_logits: Logits of the target network at the next observation, `[N, A, K]`.
        next_online_logits: Logits of the online network there, `[N, A, K]`: it then chooses the
            action. None: the target network chooses.
        next_legal: Actions to choose among, bool `[N, A]`; a row without any needs discount 0.

    Other arguments as in `project`.
    """
    check_rank("next_logits", next_logits, "N, A, K")
    check_shape("discount", discount, next_logits.shape[:1])
    if next_legal is not None:
        check_legal(next_legal, next_logits, discount)
    if next_online_logits is not None:
        check_shape("next_online_logits", next_online_logits, next_logits.shape)
    chooser = next_logits if next_online_logits is None else next_online_logits
    returns = support if rescaling is None else unrescale(support, rescaling)
    action = greedy(q_values(chooser, returns), next_legal)
    following = chosen(next_logits, action)
    check_finite((discount != 0)[:, None], next_logits=following)
    probability = _softmax(following)
    return project(probability, reward, discount, support, rescaling=rescaling).detach()


def loss(
    logits: Tensor, action: Tensor, target: Tensor, *, weight: Tensor | None = None
) -> tuple[Tensor, LossTerms]:
    """Return the cross-entropy −Σ m log p of the actions taken, a weighted mean.

    Bellemare et al. 2017, Algorithm 1.

    Args:
        logits: Logits of the online network, `[N, A, K]`.
        action: Actions taken, integers `[N]`.
        target: Distribution m, as `target` gives it, `[N, K]`, a constant.
        weight: Importance weights of a prioritised replay, `[N]`; None is 1 for all.

    Returns:
        The loss, and `kl`, the mean of `divergence`.
    """
    log_p = _chosen_log_p(logits, action, target)
    target = wide(target)
    loss = weighted_mean(-(target.detach() * log_p).sum(-1), weight)
    return loss, {"kl": _kl(target, log_p).mean()}


def divergence(logits: Tensor, action: Tensor, target: Tensor) -> Tensor:
    """Return KL(m ‖ p) `[N]` without gradient: Rainbow's priorities (Hessel et al. 2018)."""
    return _kl(target, _chosen_log_p(logits, action, target))


def _softmax(logits: Tensor) -> Tensor:
    """Return probabilities in float32 at least: bfloat16 cannot tell 51 atoms' places apart."""
    return torch.softmax(wide(logits), -1)


def _place(value: Tensor, support: Tensor) -> Tensor:
    """Return where values lie on the support, in atoms: 0 to K − 1."""
    spacing = (support[-1] - support[0]) / (len(support) - 1)
    return ((value - support[0]) / spacing).clamp(0, len(support) - 1)


def _chosen_log_p(logits: Tensor, action: Tensor, target: Tensor) -> Tensor:
    check_rank("logits", logits, "N, A, K")
    check_shape("target", target, logits.shape[:1] + logits.shape[2:])
    taken = chosen(logits, action)
    check_finite(logits=taken, target=target)
    return torch.log_softmax(wide(taken), -1)


@torch.no_grad()
def _kl(target: Tensor, log_p: Tensor) -> Tensor:
    target = wide(target)
    # Rounding may leave −1e-8, which is no priority.
    return (torch.xlogy(target, target) - target * log_p).sum(-1).clamp(min=0)
