"""A2C and A3C for any action distribution."""

from __future__ import annotations

from torch import Tensor

from bray_algo.losses import ppo
from bray_algo.losses.reductions import LossTerms, masked, masked_mean
from bray_algo.validation.tensors import check_columns, check_flags
from bray_algo.validation.values import check_finite


def loss(
    log_prob: Tensor,
    entropy: Tensor,
    value: Tensor,
    advantage: Tensor,
    target: Tensor,
    *,
    value_coefficient: float = 0.5,
    entropy_coefficient: float = 0.01,
    valid: Tensor | None = None,
) -> tuple[Tensor, LossTerms]:
    """Return the advantage actor-critic loss.

    It raises the log probability of each action by its advantage, and regresses the value to the
    return: −mean(log π A) + c₁ mean((V − R)²) − c₂ mean(H). Mnih et al. 2016, "Asynchronous methods
    for deep reinforcement learning", §4 and Algorithm S3. A2C waits for its actors where A3C does
    not; the loss is one. A batch may be used once: nothing holds the policy near the old one.

    Args:
        log_prob: Log probability of the actions taken, under the current policy, `[N]`.
        entropy: Entropy of the current policy in nats, `[N]`.
        value: Prediction of the current value function, `[N]`.
        advantage: Return less the value when the action was taken, `[N]`, a constant.
        target: Return that the value is regressed to (`n_step`), `[N]`, a constant.
        value_coefficient: Weight of the value's mean squared error, usually 0.25 to 1; see
            `ppo.loss`.
        entropy_coefficient: Weight of the entropy bonus, usually 0 to 0.02. Too large keeps the
            policy random; too small lets it settle before it has explored.
        valid: Samples that count, bool `[N]`; None is all.

    Returns:
        The loss, and `policy_loss`, `value_loss` and `entropy`.

    Raises:
        ValueError: shapes do not agree, or a number is out of its range.
    """
    check_columns(log_prob, entropy=entropy, value=value, advantage=advantage, target=target)
    check_flags("valid", valid, log_prob.shape)
    check_finite(valid, log_prob=log_prob, entropy=entropy, advantage=advantage)
    # Detached: the policy's loss must not teach the value to flatter it.
    log_prob, advantage = masked(valid, log_prob, advantage.detach())
    return ppo.actor_critic(
        -masked_mean(log_prob * advantage, valid),
        ppo.value_error(value, target, valid=valid),
        masked_mean(entropy, valid),
        value_coefficient,
        entropy_coefficient,
    )
