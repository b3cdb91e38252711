"""Returns and advantages over time-major, ragged segments.

Shapes: T time, B segments. Segment b has `length[b]` valid steps; what comes after is padding and
gives zeros, whatever it holds. A step that terminated has no future; a segment that ends otherwise
(cut or truncated) goes on with `final_value [B]`, the value of the observation after its last valid
step. So a segment must end where its episode is truncated: the value to go on with is that of the
episode's own last observation, not of the next episode's first.

Results are float32 at least, whatever the type of rewards and values (`precision`).

On policy: `gae`, `n_step`, `td_lambda`, `upgo`. Off policy: `vtrace` (of state values), `retrace`
(of action values). All are one `recurrence.discounted_sum` over whole rows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bray_algo.precision import alike, probability_ratio, wide
from bray_algo.returns import segments
from bray_algo.returns.recurrence import discounted_sum
from bray_algo.validation.scalars import check_count, check_fraction, check_limit
from bray_algo.validation.tensors import check_numbers, check_shape
from bray_algo.validation.values import check_finite, is_suspect


def gae(
    reward: Tensor,
    value: Tensor,
    final_value: Tensor,
    terminated: Tensor,
    length: Tensor,
    *,
    gamma: float,
    lambda_: float,
) -> Tensor:
    """Return generalised advantage estimates `[T, B]`.

    Schulman et al. 2016, "High-dimensional continuous control using generalized advantage
    estimation", equation 16: A_t = Σ (γλ)^l δ_{t+l}, δ_t = r_t + γ V_{t+1} − V_t.

    Args:
        reward: Reward r_t, `[T, B]`.
        value: Value V_t of the observation before each step, `[T, B]`.
        final_value: Value after the last valid step, `[B]`; not read where that step terminated.
        terminated: Steps that ended their episode for good, bool `[T, B]`.
        length: Number of valid steps of each segment, `[B]`, 1 to T.
        gamma: Discount γ, 0 to 1; usually 0.95 to 0.999. A reward k steps on counts γ^k: too small
            does not see far enough, too near 1 drowns in the noise of what comes long after.
        lambda_: Trace λ, 0 to 1; usually 0.9 to 0.97. At 0 advantages rest on the value function's
            errors, at 1 on the noise of whole returns.

    Raises:
        ValueError: shapes do not agree, or a number is out of its range or not finite.
    """
    delta, discount = _td_error(reward, value, final_value, terminated, length, gamma)
    check_fraction("lambda_", lambda_)
    # Padding comes last and adds 0, so that nothing of it is carried into valid steps.
    return discounted_sum(delta, discount * lambda_)


def td_lambda(
    reward: Tensor,
    value: Tensor,
    final_value: Tensor,
    terminated: Tensor,
    length: Tensor,
    *,
    gamma: float,
    lambda_: float,
) -> Tensor:
    """Return TD(λ)'s λ-returns `[T, B]`, what a value function is regressed to.

    Sutton & Barto 2018, "Reinforcement learning: an introduction", equation 12.3, which is
    G_t = r_t + γ ((1 − λ) V_{t+1} + λ G_{t+1}). They are GAE's advantages plus the values.
    Arguments and errors are those of `gae`.
    """
    columns = (reward, value, final_value, terminated, length)
    advantage = gae(*columns, gamma=gamma, lambda_=lambda_)
    return advantage + segments.blank(wide(value), segments.after_end(reward, length))


def n_step(
    reward: Tensor,
    value: Tensor,
    final_value: Tensor,
    terminated: Tensor,
    length: Tensor,
    *,
    gamma: float,
    num_steps: int | None = None,
) -> Tensor:
    """Return n-step returns R_t = r_t + γ r_{t+1} + … + γ^n V_{t+n}, `[T, B]`.

    Without `num_steps` they go to the segment's end and are bootstrapped there: Mnih et al. 2016,
    "Asynchronous methods for deep reinforcement learning", Algorithm S3. With it, n = `num_steps`,
    fewer where the segment ends before: Sutton & Barto 2018, equation 7.1. A small n rests on the
    value function's errors, a large one on the noise of many rewards. Other arguments and errors
    are those of `gae`.
    """
    columns = (reward, value, final_value, terminated, length)
    if num_steps is None:
        return td_lambda(*columns, gamma=gamma, lambda_=1.0)
    padding = segments.padding(reward, final_value, terminated, length, value=value)
    check_fraction("gamma", gamma)
    check_count("num_steps", num_steps)
    reward, value, final_value = alike(reward, value, final_value)
    returns, discount = value, segments.discount(gamma, terminated, reward.dtype)
    # Each round puts one reward before what there is: after n of them it is the n-step return.
    for _ in range(min(num_steps, len(reward))):
        following = segments.following(returns, final_value, terminated, length)
        returns = torch.addcmul(reward, discount, following)
    return segments.blank(returns, padding)


def upgo(
    reward: Tensor,
    value: Tensor,
    final_value: Tensor,
    terminated: Tensor,
    length: Tensor,
    *,
    gamma: float,
) -> Tensor:
    """Return upgoing returns `[T, B]`, which follow a trajectory while it does better than V.

    Vinyals et al. 2019, "Grandmaster level in StarCraft II", Methods, with a discount:
    G_t = r_t + γ G_{t+1} if r_{t+1} + γ V_{t+2} ≥ V_{t+1}, else r_t + γ V_{t+1}. The policy's
    advantage is min(1, π/μ) (G_t − V_t). Arguments and errors as in `gae`.
    """
    delta, discount = _td_error(reward, value, final_value, terminated, length, gamma)
    worse = segments.later(delta) < 0
    gain = discounted_sum(delta, discount * segments.discount(1.0, worse, delta.dtype))
    return gain + segments.blank(wide(value), segments.after_end(reward, length))


class _TDError(NamedTuple):
    """What a step brought beyond its value, `[T, B]` each."""

    delta: Tensor
    """δ_t = r_t + γ V_{t+1} − V_t, zeros in padding."""
    discount: Tensor
    """γ, or 0 where the step terminated."""


def _td_error(
    reward: Tensor,
    value: Tensor,
    final_value: Tensor,
    terminated: Tensor,
    length: Tensor,
    gamma: float,
) -> _TDError:
    """Check arguments like those of `gae`, and return the temporal-difference errors."""
    padding = segments.padding(reward, final_value, terminated, length, value=value)
    check_fraction("gamma", gamma)
    reward, value, final_value = alike(reward, value, final_value)
    discount = segments.discount(gamma, terminated, reward.dtype)
    following = segments.following(value, final_value, terminated, length)
    delta = torch.addcmul(reward - value, discount, following)
    return _TDError(segments.blank(delta, padding), discount)


class VTrace(NamedTuple):
    """Targets of V-trace, `[T, B]` each, zeros in padding."""

    target: Tensor
    """v_s, what the value function is regressed to."""
    advantage: Tensor
    """ρ_s (r_s + γ v_{s+1} − V_s), the weight of the policy gradient."""


def vtrace(
    log_ratio: Tensor,
    reward: Tensor,
    value: Tensor,
    final_value: Tensor,
    terminated: Tensor,
    length: Tensor,
    *,
    gamma: float,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
) -> VTrace:
    """Return V-trace targets and advantages.

    Espeholt et al. 2018, "IMPALA", equation 1 and remark 1, §4.2.

    Args:
        log_ratio: log π(a|x) − log μ(a|x) of the actions taken, `[T, B]`, where μ acted and π is
            the current policy.
        reward: Reward of each step, `[T, B]`.
        value: Value of the observation before each step, `[T, B]`.
        final_value: Value after the last valid step, `[B]`; not read where that step terminated.
        terminated: Steps that ended their episode for good, bool `[T, B]`.
        length: Number of valid steps of each segment, `[B]`, 1 to T.
        gamma: Discount γ, 0 to 1, as in `gae`.
        rho_bar: Clip ρ̄ of the weights π/μ in δ, usually 1. It fixes whose values are learned: at
            `math.inf` (none; but see `precision.MAX_LOG_RATIO`) those of π, near 0 those of μ; the
            larger, the noisier.
        c_bar: Clip c̄ of the traces, usually 1. It changes the speed alone, not what is learned;
            above 1 the product of traces may grow over all bounds.

    Raises:
        ValueError: shapes do not agree, or a number is out of its range or not finite.
    """
    padding = segments.padding(reward, final_value, terminated, length, value=value)
    _check_log_ratio(log_ratio, padding, reward)
    check_fraction("gamma", gamma)
    check_limit("rho_bar", rho_bar)
    check_limit("c_bar", c_bar)
    log_ratio, reward, value, final_value = alike(log_ratio, reward, value, final_value)
    weight = probability_ratio(segments.blank(log_ratio, padding))
    rho, trace = weight.clamp(max=rho_bar), weight.clamp(max=c_bar)
    ends = (final_value, terminated, length)
    discount, gain = segments.discount(gamma, terminated, reward.dtype), reward - value
    delta = rho * torch.addcmul(gain, discount, segments.following(value, *ends))
    correction = discounted_sum(segments.blank(delta, padding), discount * trace)
    target = segments.blank(value + correction, padding)
    # Remark 1: v_{s+1} in the place of V_{s+1}, as the targets know more than the value does.
    advantage = rho * torch.addcmul(gain, discount, segments.following(target, *ends))
    return VTrace(target, segments.blank(advantage, padding))


def retrace(
    log_ratio: Tensor,
    reward: Tensor,
    action_value: Tensor,
    value: Tensor,
    final_value: Tensor,
    terminated: Tensor,
    length: Tensor,
    *,
    gamma: float,
    lambda_: float,
) -> Tensor:
    """Return Retrace(λ) targets of action values, `[T, B]`.

    Munos et al. 2016, "Safe and efficient off-policy reinforcement learning", equation 3:
    Q_t + Σ γ^k (Π c_{t+i}) δ_{t+k}, δ_t = r_t + γ E_π Q(x_{t+1}, ·) − Q_t, and the traces, from
    the second step on, c = λ min(1, π/μ) (§3).

    Args:
        log_ratio: log π(a|x) − log μ(a|x) of the actions taken, `[T, B]`.
        reward: Reward of each step, `[T, B]`.
        action_value: Q(x_t, a_t), `[T, B]`.
        value: Expectation E_π Q(x_t, ·), `[T, B]`.
        final_value: Expectation E_π Q after the last valid step, `[B]`; not read where that step
            terminated.
        terminated: Steps that ended their episode for good, bool `[T, B]`.
        length: Number of valid steps of each segment, `[B]`, 1 to T.
        gamma: Discount γ, 0 to 1, as in `gae`.
        lambda_: Trace λ, 0 to 1; usually 0.9 to 1. Larger ones look further and are noisier.

    Raises:
        ValueError: shapes do not agree, or a number is out of its range or not finite.
    """
    columns = {"action_value": action_value, "value": value}
    padding = segments.padding(reward, final_value, terminated, length, **columns)
    _check_log_ratio(log_ratio, padding, reward)
    check_fraction("gamma", gamma)
    check_fraction("lambda_", lambda_)
    columns_ = alike(log_ratio, reward, action_value, value, final_value)
    log_ratio, reward, action_value, value, final_value = columns_
    discount = segments.discount(gamma, terminated, reward.dtype)
    following = segments.following(value, final_value, terminated, length)
    delta = torch.addcmul(reward - action_value, discount, following)
    # min(1, π/μ), taken in the logarithm, where it cannot overflow.
    trace = lambda_ * segments.blank(log_ratio, padding).clamp(max=0.0).exp()
    # A step's own trace weighs what comes before it, so it enters one step later.
    carry = discount * segments.later(trace)
    correction = discounted_sum(segments.blank(delta, padding), carry)
    return correction + segments.blank(action_value, padding)


def _check_log_ratio(log_ratio: Tensor, padding: Tensor | None, reward: Tensor) -> None:
    """Refuse another shape, NaN and +inf; −inf is an action that π never takes."""
    check_numbers("log_ratio", log_ratio)
    check_shape("log_ratio", log_ratio, reward.shape)
    if is_suspect(log_ratio):
        valid = None if padding is None else ~padding
        check_finite(valid, log_ratio=wide(log_ratio).clamp(min=torch.finfo(torch.float32).min))
