"""Losses for one categorical action over flat batches `[N]`: each returns the loss and its terms.

For any other action distribution: `ppo.loss`, `a2c.loss`, `cloning.likelihood_loss`, which take
log probabilities and entropies.
"""

from __future__ import annotations

from torch import Tensor

from bray_algo.distributions import categorical
from bray_algo.losses import a2c, cloning, ppo
from bray_algo.losses.reductions import LossTerms
from bray_algo.validation.tensors import check_floats, check_rank, check_shape
from bray_algo.validation.values import check_logits


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
        logits: Logits of the current policy, `[N, A]`.
        value: Prediction of the current value function, `[N]`.
        action: Actions taken, integers `[N]`.
        old_log_prob: Log probability of those actions when they were taken, `[N]`.
        advantage: Advantage of each action, `[N]`, a constant; usually normalised before.
        target: Return that the value is regressed to, `[N]`, a constant.
        clip: ε, how far π/π_old may leave 1 before its gradient stops; usually 0.1 to 0.3. Too
            large lets one batch ruin the policy; too small learns slowly.
        dual_clip: Bound c > 1 of `ppo.clipped_surrogate`, usually 3; None is no bound.
        value_coefficient: Weight c₁ of the value's mean squared error, usually 0.5 to 1; see
            `ppo.loss`.
        entropy_coefficient: Weight c₂ of the entropy bonus, usually 0 to 0.02. Too large keeps the
            policy random; too small lets it settle before it has explored.
        value_clip: Distance from `old_value` beyond which a value gains nothing more by moving;
            None is no clip.
        old_value: Prediction when the actions were taken, `[N]`; given together with `value_clip`.

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

    Mnih et al. 2016, "Asynchronous methods for deep reinforcement learning", Algorithm S3; Espeholt
    et al. 2018, "IMPALA", §4.2. The loss is `a2c.loss`; arguments as there and in `ppo_loss`.
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
    """Return the mean of −log π over demonstrated actions, and the `accuracy` of the likeliest.

    Pomerleau 1989, "ALVINN: an autonomous land vehicle in a neural network".

    Args:
        logits: Logits of the policy that learns, `[N, A]`.
        action: Demonstrated actions, integers `[N]`.
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
