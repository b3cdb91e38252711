"""Losses for one categorical action over flat batches `[N]`: each returns the loss and its terms.

For any other action distribution: `ppo.loss`, `a2c.loss`, `cloning.likelihood_loss`, which take
log probabilities and entropies.
"""

from __future__ import annotations

from torch import Tensor

from bray_algo.distributions import categorical
from bray_algo.losses import a2c, cloning, ppo
from bray_algo.losses.ppo import clipped_surrogate, value_error
from bray_algo.losses.reductions import LossTerms
from bray_algo.validation.tensors import check_floats, check_rank, check_shape
from bray_algo.validation.values import check_logits

__all__ = [
    "LossTerms",
    "behaviour_cloning_loss",
    "clipped_surrogate",
    "policy_gradient_loss",
    "ppo_loss",
    "value_error",
]


def ppo_loss(
    logits: Tensor,
    value: Tensor,
    action: Tensor,
    old_log_prob: Tensor,
    advantage: Tensor,
    target: Tensor,
    *,
    clip: float = 0.2,
    dual_clip: float | None = None,
    value_coefficient: float = 0.5,
    entropy_coefficient: float = 0.0,
    value_clip: float | None = None,
    old_value: Tensor | None = None,
) -> tuple[Tensor, LossTerms]:
    """Return PPO's clipped loss for discrete actions.

    Schulman et al. 2017, "Proximal policy optimization algorithms", equations 7 and 9.

    Args:
        logits: of the current policy, `[N, A]`.
        value: of the current value function, `[N]`.
        action: taken, integers `[N]`.
        old_log_prob: of those actions when they were taken, `[N]`.
        advantage: `[N]`, a constant; normalise it before, if you want to.
        target: what the value is regressed to, `[N]`, a constant.
        clip: ε.
        dual_clip: c > 1 of `ppo.clipped_surrogate`; None is none.
        value_coefficient: c₁, of the mean squared error.
        entropy_coefficient: c₂.
        value_clip: how far the value may gain by leaving `old_value`; None is no clip.
        old_value: of the value function when the actions were taken, `[N]`; with `value_clip`.

    Returns:
        The loss, and `policy_loss`, `value_loss`, `entropy`, `approx_kl` (Schulman's k3 estimate
        of KL(old ‖ new)) and `clip_fraction`.

    Raises:
        ValueError: shapes do not agree, a clip is out of its range, or one of `value_clip` and
            `old_value` is given without the other.
    """
    _check_logits(logits, action)
    return ppo.loss(
        *categorical.log_prob_and_entropy(logits, action),
        value,
        old_log_prob,
        advantage,
        target,
        clip=clip,
        dual_clip=dual_clip,
        value_coefficient=value_coefficient,
        entropy_coefficient=entropy_coefficient,
        value_clip=value_clip,
        old_value=old_value,
    )


def policy_gradient_loss(
    logits: Tensor,
    value: Tensor,
    action: Tensor,
    advantage: Tensor,
    target: Tensor,
    *,
    value_coefficient: float = 0.5,
    entropy_coefficient: float = 0.01,
) -> tuple[Tensor, LossTerms]:
    """Return the actor-critic loss of A2C, and with V-trace's advantage and target of IMPALA.

    Mnih et al. 2016, Algorithm S3; Espeholt et al. 2018, §4.2. Arguments as in `ppo_loss`.
    """
    _check_logits(logits, action)
    return a2c.loss(
        *categorical.log_prob_and_entropy(logits, action),
        value,
        advantage,
        target,
        value_coefficient=value_coefficient,
        entropy_coefficient=entropy_coefficient,
    )


def behaviour_cloning_loss(logits: Tensor, action: Tensor) -> tuple[Tensor, LossTerms]:
    """Return −log π of demonstrated actions, and the `accuracy` of the most likely action.

    Pomerleau 1989, "ALVINN".
    """
    _check_logits(logits, action)
    loss, _ = cloning.likelihood_loss(categorical.log_prob(logits, action))
    accuracy = (categorical.mode(logits) == action).to(loss.dtype).mean()
    return loss, {"accuracy": accuracy}


def _check_logits(logits: Tensor, action: Tensor) -> None:
    check_rank("logits", logits, "N, A")
    check_floats("logits", logits)
    hint = ": flatten time and batch to one dimension N"
    check_shape("action", action, logits.shape[:1], hint)
    check_logits(logits=logits)
