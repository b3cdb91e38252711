"""MAPPO: PPO for agents that cooperate, with a critic that sees the whole state."""

from __future__ import annotations

from torch import Tensor

from bray_algo.losses import ppo
from bray_algo.losses.reductions import LossTerms, masked_mean
from bray_algo.validation.tensors import (
    check_columns,
    check_flags,
    check_numbers,
    check_rank,
    check_shape,
)
from bray_algo.validation.values import check_finite


def loss(
    log_prob: Tensor,
    entropy: Tensor,
    value: Tensor,
    old_log_prob: Tensor,
    advantage: Tensor,
    target: Tensor,
    *,
    alive: Tensor | None = None,
    clip: float = 0.2,
    value_coefficient: float = 0.5,
    entropy_coefficient: float = 0.01,
    value_clip: float | None = None,
    old_value: Tensor | None = None,
) -> tuple[Tensor, LossTerms]:
    """Return multi-agent PPO's loss: N states, M agents that share a policy or have their own.

    Yu et al. 2022, "The surprising effectiveness of PPO in cooperative multi-agent games",
    Appendix A. The critic is central: it was given the state, or each agent's view with the state.
    Independent PPO is the same with a value of each agent's own observation.

    Args:
        log_prob: Log probability of each agent's action, `[N, M]`.
        entropy: Entropy of each agent's policy in nats, `[N, M]`.
        value: Value of the state `[N]`, or one for each agent `[N, M]`.
        old_log_prob: Log probability of those actions when they were taken, `[N, M]`.
        advantage: Advantage of the team `[N]`, which every agent gets, or of each agent `[N, M]`.
        target: Return that the value is regressed to, in the value's shape.
        alive: Agents that acted, bool `[N, M]`; None is all. Others count nowhere, nor does a state
            in which nobody acted.
        clip: ε of `ppo.loss`, usually 0.05 to 0.2: with many agents the joint policy moves further
            than each of them, and too large a clip breaks their cooperation.
        value_coefficient: Weight of the value's mean squared error, usually 0.5 to 1.
        entropy_coefficient: Weight of the entropy bonus, usually 0 to 0.02; see `ppo.loss`.
        value_clip: Clip of the value as in `ppo.loss`; None is no clip.
        old_value: Prediction when the actions were taken, in the value's shape; with `value_clip`.

    Returns:
        The loss and its terms, as `ppo.loss`; means over the agents that acted.

    Raises:
        ValueError: shapes do not agree, or `ppo.loss` would refuse an argument.
    """
    check_rank("log_prob", log_prob, "N, M")
    check_numbers("value", value)
    check_numbers("advantage", advantage)
    check_columns(log_prob, old_log_prob=old_log_prob, entropy=entropy)
    check_flags("alive", alive, log_prob.shape)
    check_finite(alive, entropy=entropy)
    if value.ndim == 1:
        check_shape("value", value, log_prob.shape[:1])
        states = None if alive is None else alive.any(1)
    else:
        check_columns(log_prob, value=value)
        states = alive
    if advantage.ndim == 1:
        check_shape("advantage", advantage, log_prob.shape[:1])
        # A team's advantage is each agent's: nobody knows who earned it.
        advantage = advantage[:, None].expand_as(log_prob)
    policy_loss, terms = ppo.clipped_surrogate(
        log_prob, old_log_prob, advantage, clip=clip, valid=alive
    )
    value_loss = ppo.value_error(
        value, target, value_clip=value_clip, old_value=old_value, valid=states
    )
    return ppo.actor_critic(
        policy_loss,
        value_loss,
        masked_mean(entropy, alive),
        value_coefficient,
        entropy_coefficient,
        terms,
    )
