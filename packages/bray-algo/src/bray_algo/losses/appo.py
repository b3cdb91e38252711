"""APPO: PPO's clipped surrogate on V-trace targets, for trajectories of older policies."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bray_algo.losses import ppo
from bray_algo.losses.impala import lag_terms
from bray_algo.losses.reductions import LossTerms, masked_mean, standardised
from bray_algo.precision import alike
from bray_algo.returns import segments
from bray_algo.returns.advantages import vtrace
from bray_algo.validation.scalars import check_limit
from bray_algo.validation.tensors import check_columns, check_numbers
from bray_algo.validation.values import check_finite


def loss(
    log_prob: Tensor,
    entropy: Tensor,
    value: Tensor,
    behaviour_log_prob: Tensor,
    reward: Tensor,
    final_value: Tensor,
    terminated: Tensor,
    length: Tensor,
    *,
    gamma: float,
    target_log_prob: Tensor | None = None,
    clip: float = 0.2,
    dual_clip: float | None = None,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    max_behaviour_ratio: float = 2.0,
    value_coefficient: float = 0.5,
    entropy_coefficient: float = 0.01,
    normalize_advantage: bool = False,
) -> tuple[Tensor, LossTerms]:
    """Return the asynchronous PPO loss, the mean over valid steps.

    Two forms of one idea:

    - without `target_log_prob` the ratio is π/μ, clipped around the policy that acted, and the
      advantage r_t + γ v_{t+1} − V_t from V-trace's targets, without its weight ρ, because the
      ratio is that weight (Petrenko et al. 2020, "Sample Factory");
    - with it, the target network's policy π' (a copy of π, renewed now and then) is the one to stay
      near: the ratio is min(μ/π', ρ̂) π/μ, which is π/π' but where μ is far off, and V-trace is
      that of π', its advantage with ρ (Luo et al. 2020, "IMPACT: importance weighted asynchronous
      architectures with clipped target networks", §3).

    Args:
        log_prob: Log probability of the actions taken, under the current policy π, `[T, B]`.
        entropy: Entropy of π in nats, `[T, B]`.
        value: Prediction of the current value function, `[T, B]`.
        behaviour_log_prob: Log probability of those actions when they were taken, under μ, `[T,
            B]`.
        reward: Reward of each step, `[T, B]`.
        final_value: Value after the last valid step, `[B]`.
        terminated: Steps that ended their episode for good, bool `[T, B]`.
        length: Number of valid steps of each segment, `[B]`, 1 to T.
        gamma: Discount γ, 0 to 1; usually 0.99.
        target_log_prob: Log probability of the actions taken, under the target network π', `[T,
            B]`; None: the first of the two forms.
        clip: ε, how far the ratio may leave 1 before its gradient stops; usually 0.1 to 0.4. Too
            large lets one batch ruin the policy; too small learns slowly from old policies.
        dual_clip: Bound c > 1 of `ppo.clipped_surrogate`; None is no bound.
        rho_bar: Clip ρ̄ of V-trace's weights, usually 1.
        c_bar: Clip c̄ of V-trace's traces, usually 1.
        max_behaviour_ratio: Bound ρ̂ of μ/π', usually 2; read with `target_log_prob` alone. The
            larger, the more a batch of a policy that is far off may push.
        value_coefficient: Weight of the value's mean squared error, usually 0.25 to 1; see
            `ppo.loss`.
        entropy_coefficient: Weight of the entropy bonus, usually 0 to 0.02. Too large keeps the
            policy random; too small lets it settle before it has explored.
        normalize_advantage: Whether the advantages of the valid steps are brought to mean 0 and
            deviation 1, so that the entropy bonus weighs the same however rare rewards are.

    Returns:
        The loss, and `policy_loss`, `value_loss`, `entropy`, `approx_kl` and `clip_fraction` (π
        against what it is clipped around), `behaviour_kl` (π against μ, the `approx_kl` of
        `impala.loss`) and `rho_clip_fraction` (share of V-trace's weights that were clipped).

    Raises:
        ValueError: shapes do not agree, or a number is out of its range.
    """
    check_columns(log_prob, entropy=entropy, value=value, target_log_prob=target_log_prob)
    check_columns(log_prob, behaviour_log_prob=behaviour_log_prob)
    check_numbers("final_value", final_value)
    ends = (final_value.detach(), terminated, length)
    padding = segments.padding(
        reward, *ends, log_prob=log_prob, behaviour_log_prob=behaviour_log_prob
    )
    valid = None if padding is None else ~padding
    check_finite(valid, entropy=entropy, target_log_prob=target_log_prob)
    log_prob, behaviour_log_prob, reward, value = alike(log_prob, behaviour_log_prob, reward, value)
    followed = log_prob if target_log_prob is None else target_log_prob
    log_ratio = (followed - behaviour_log_prob).detach()
    columns = (reward, value.detach(), *ends)
    targets = vtrace(log_ratio, *columns, gamma=gamma, rho_bar=rho_bar, c_bar=c_bar)
    if target_log_prob is None:
        near = behaviour_log_prob
        discount = segments.discount(gamma, terminated, reward.dtype)
        following = segments.following(targets.target, *ends)
        advantage = reward + discount * following - value.detach()
    else:
        check_limit("max_behaviour_ratio", max_behaviour_ratio)
        # min(μ/π', ρ̂) π/μ is π over the greater of π' and μ/ρ̂.
        near = torch.maximum(target_log_prob, behaviour_log_prob - math.log(max_behaviour_ratio))
        advantage = targets.advantage
    if normalize_advantage:
        advantage = standardised(advantage, valid)
    policy_loss, terms = ppo.clipped_surrogate(
        log_prob, near, advantage, clip=clip, dual_clip=dual_clip, valid=valid
    )
    lag = lag_terms((log_prob - behaviour_log_prob).detach(), rho_bar, valid)
    weights = lag_terms(log_ratio, rho_bar, valid)["rho_clip_fraction"]
    return ppo.actor_critic(
        policy_loss,
        ppo.value_error(value, targets.target, valid=valid),
        masked_mean(entropy, valid),
        value_coefficient,
        entropy_coefficient,
        {**terms, "behaviour_kl": lag["approx_kl"], "rho_clip_fraction": weights},
    )
