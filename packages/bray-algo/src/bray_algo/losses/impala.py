"""IMPALA: an actor-critic that learns from the trajectories of older policies, by V-trace."""

from __future__ import annotations

from torch import Tensor

from bray_algo.losses import a2c
from bray_algo.losses.reductions import LossTerms, masked_mean
from bray_algo.precision import alike, probability_ratio
from bray_algo.returns import segments
from bray_algo.returns.advantages import vtrace
from bray_algo.validation.tensors import check_columns, check_numbers


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
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    value_coefficient: float = 0.5,
    entropy_coefficient: float = 0.01,
) -> tuple[Tensor, LossTerms]:
    """Return the V-trace actor-critic loss, the mean over valid steps.

    Espeholt et al. 2018, "IMPALA", §4.2 (there a sum over steps): A2C's loss on V-trace's targets,
    which weigh what an older policy μ did by how likely π would have done it.

    Args:
        log_prob: Log probability of the actions taken, under the current policy π, `[T, B]`.
        entropy: Entropy of π in nats, `[T, B]`.
        value: Prediction of the current value function, `[T, B]`.
        behaviour_log_prob: Log probability of those actions when they were taken, under μ, `[T,
            B]`.
        reward: Reward of each step, `[T, B]`.
        final_value: Value after the last valid step, by the current value function, `[B]`.
        terminated: Steps that ended their episode for good, bool `[T, B]`.
        length: Number of valid steps of each segment, `[B]`, 1 to T.
        gamma: Discount γ, 0 to 1; usually 0.99. See `returns.advantages.gae`.
        rho_bar: Clip ρ̄ of the weights π/μ, usually 1; see `returns.advantages.vtrace`.
        c_bar: Clip c̄ of the traces, usually 1.
        value_coefficient: Weight of the value's mean squared error, usually 0.25 to 1; see
            `ppo.loss`.
        entropy_coefficient: Weight of the entropy bonus, usually 0 to 0.02. Too large keeps the
            policy random; too small lets it settle before it has explored.

    Returns:
        The loss, and `policy_loss`, `value_loss`, `entropy`, `approx_kl` (Schulman's k3 estimate
        of KL(μ ‖ π): how far behind the actors are) and `rho_clip_fraction`.

    Raises:
        ValueError: shapes do not agree, or a number is out of its range.
    """
    check_columns(log_prob, entropy=entropy, value=value, behaviour_log_prob=behaviour_log_prob)
    check_numbers("final_value", final_value)
    ends = (final_value.detach(), terminated, length)
    padding = segments.padding(
        reward, *ends, log_prob=log_prob, behaviour_log_prob=behaviour_log_prob
    )
    valid = None if padding is None else ~padding
    log_prob, behaviour_log_prob, value = alike(log_prob, behaviour_log_prob, value)
    log_ratio = (log_prob - behaviour_log_prob).detach()
    columns = (reward, value.detach(), *ends)
    targets = vtrace(log_ratio, *columns, gamma=gamma, rho_bar=rho_bar, c_bar=c_bar)
    total, terms = a2c.loss(
        log_prob,
        entropy,
        value,
        targets.advantage,
        targets.target,
        value_coefficient=value_coefficient,
        entropy_coefficient=entropy_coefficient,
        valid=valid,
    )
    return total, {**terms, **lag_terms(log_ratio, rho_bar, valid)}


def lag_terms(log_ratio: Tensor, rho_bar: float, valid: Tensor | None) -> LossTerms:
    """Return how far π is from μ, `approx_kl` and `rho_clip_fraction`, given log π − log μ."""
    weight = probability_ratio(log_ratio)
    clipped = (weight > rho_bar).to(weight.dtype)
    return {
        "approx_kl": masked_mean(weight - 1 - log_ratio, valid),
        "rho_clip_fraction": masked_mean(clipped, valid),
    }
