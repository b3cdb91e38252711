"""Soft actor-critic for discrete actions, over flat batches `[N]` and K critics.

Christodoulou 2019, "Soft actor-critic for discrete action settings": critics give the values of all
actions `[K, N, A]`, and expectations over the policy are sums. Illegal actions have logits of −inf
or of `categorical.mask`; what their values are does not matter.
"""

from __future__ import annotations

from torch import Tensor

from bray_algo.distributions import categorical
from bray_algo.losses import critics, dqn, sac
from bray_algo.losses.reductions import LossTerms
from bray_algo.precision import wide
from bray_algo.returns.targets import bootstrap
from bray_algo.validation.tensors import check_rank, check_shape
from bray_algo.validation.values import check_finite, check_logits


def chosen(q: Tensor, action: Tensor) -> Tensor:
    """Return the values `[K, N]` of the actions taken `[N]`, for `sac.critic_loss`.

    Raises:
        ValueError: shapes do not agree; every function of this file refuses that.
    """
    check_rank("q", q, "K, N, A")
    return dqn.chosen(q.transpose(0, 1).transpose(1, 2), action).T


def target(
    next_q: Tensor,
    next_logits: Tensor,
    reward: Tensor,
    discount: Tensor,
    *,
    alpha: Tensor | float,
) -> Tensor:
    """Return r + d Σ_a π(a|s') (min_k Q'_k(s', a) − α log π(a|s')), `[N]`, without gradient.

    Equation 10.

    Args:
        next_q: Values of all actions by the target critics at the next observation, `[K, N, A]`.
        next_logits: Logits of the current policy there, `[N, A]`.
        reward: Reward r, or the discounted sum of n rewards, `[N]`.
        discount: γⁿ, or 0 where the episode terminated, `[N]`: see `targets.discount`.
        alpha: Temperature α, 0 or more, one number, a constant: see `sac.actor_loss`.
    """
    soft_q, _ = _expectations(next_q, next_logits, alpha, "next_", discount)
    return bootstrap(reward, discount, soft_q)


def actor_loss(q: Tensor, logits: Tensor, *, alpha: Tensor | float) -> tuple[Tensor, LossTerms]:
    """Return J_π, the mean of Σ_a π(a|s) (α log π(a|s) − min_k Q_k(s, a)) (equation 12).

    Args:
        q: Values of all actions by the critics, `[K, N, A]`, constants.
        logits: Logits of the current policy, `[N, A]`.
        alpha: Temperature α, the worth of a nat of entropy in units of reward. Too large keeps the
            policy random, too small lets it settle before it has explored; usually it is learned.

    Returns:
        The loss, and `entropy` and `q` (both expectations over the policy).
    """
    check_rank("q", q, "K, N, A")
    soft_q, entropy = _expectations(q.detach(), logits, alpha)
    terms = {
        "entropy": entropy.detach().mean(),
        "q": (soft_q - sac.constant(alpha) * entropy).detach().mean(),
    }
    # Maximising E_π[min Q] + α H is minimising equation 12.
    return -soft_q.mean(), terms


def temperature_loss(
    log_alpha: Tensor, logits: Tensor, *, target_entropy: float
) -> tuple[Tensor, LossTerms]:
    """Return J(α), the mean of Σ_a π(a|s) (−α (log π(a|s) + H̄)) (equation 11).

    Args:
        log_alpha: Parameter log α, a scalar; usually begins at 0.
        logits: Logits of the current policy, `[N, A]`, constants.
        target_entropy: Entropy H̄ to be kept, in nats, below the log of the number A of legal
            actions: usually 0.3 to 0.98 of it. At log A or above, α grows without end.

    Returns:
        The loss, and `alpha`.
    """
    check_rank("logits", logits, "N, A")
    check_logits(logits=logits)
    entropy = categorical.entropy(logits.detach())
    return sac.temperature_loss(log_alpha, -entropy, target_entropy=target_entropy)


def _expectations(
    q: Tensor,
    logits: Tensor,
    alpha: Tensor | float,
    prefix: str = "",
    discount: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return E_π[min Q] + α H(π) and H(π), `[N]` each."""
    check_rank(f"{prefix}q", q, "K, N, A")
    check_shape(f"{prefix}logits", logits, q.shape[1:])
    if discount is not None:
        check_shape("discount", discount, q.shape[1:2])
    valid = None if discount is None else discount != 0
    check_logits(valid, **{f"{prefix}logits": logits})
    probability = categorical.log_probs(logits).exp()
    met = probability != 0 if valid is None else (probability != 0) & valid[:, None]
    check_finite(met, **{f"{prefix}q": q})
    # An action without a chance may have a value of −inf or NaN: 0 times that is NaN.
    value = wide(critics.lowest(q)).masked_fill(probability == 0, 0.0)
    entropy = categorical.entropy(logits)
    return (probability * value).sum(-1) + sac.constant(alpha) * entropy, entropy
