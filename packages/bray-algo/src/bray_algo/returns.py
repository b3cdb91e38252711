"""Returns and advantages over time-major, ragged segments.

Shapes: T time, B segments. Segment b has `length[b]` valid steps; what comes after is padding and
gives zeros, whatever it holds. A step that terminated has no future; a segment that ends otherwise
(cut or truncated) goes on with `final_value [B]`, the value of the observation after its last valid
step. So a segment must end where its episode is truncated: the value to go on with is that of the
episode's own last observation, not of the next episode's first.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


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
        reward: r_t, `[T, B]`.
        value: V_t, `[T, B]`.
        final_value: V after the last valid step, `[B]`; not read where that step terminated.
        terminated: whether the step ended the episode for good, bool `[T, B]`.
        length: valid steps, `[B]`, 1 to T.
        gamma: discount γ, 0 to 1.
        lambda_: λ, 0 to 1.

    Raises:
        ValueError: shapes do not agree, or a number is out of its range.
    """
    padding = _padding(reward, value, final_value, terminated, length)
    _check_fraction("gamma", gamma)
    _check_fraction("lambda_", lambda_)
    following_value = _next_value(value, final_value, terminated, length)
    delta = (reward + gamma * following_value - value).masked_fill(padding, 0.0)
    return _accumulate(delta, lambda_ * _discount(gamma, terminated, delta))


def n_step(
    reward: Tensor,
    value: Tensor,
    final_value: Tensor,
    terminated: Tensor,
    length: Tensor,
    *,
    gamma: float,
) -> Tensor:
    """Return R_t = r_t + γ R_{t+1} to the segment's end, bootstrapped there, `[T, B]`.

    Mnih et al. 2016, "Asynchronous methods for deep reinforcement learning", Algorithm S3.
    Arguments and errors as in `gae`, of which it is the case λ = 1 plus the value.
    """
    advantage = gae(reward, value, final_value, terminated, length, gamma=gamma, lambda_=1.0)
    padding = _padding(reward, value, final_value, terminated, length)
    return advantage + value.masked_fill(padding, 0.0)


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
        log_ratio: log π(a|x) − log μ(a|x) of the actions taken, `[T, B]`.
        rho_bar: clip ρ̄ of the weights in δ.
        c_bar: clip c̄ of the traces.

    Other arguments and errors as in `gae`.
    """
    padding = _padding(reward, value, final_value, terminated, length)
    _check("log_ratio", log_ratio, reward.shape)
    _check_fraction("gamma", gamma)
    if not (rho_bar > 0 and c_bar > 0):
        raise ValueError(f"rho_bar, c_bar: expected positive clips, got {rho_bar}, {c_bar}")
    ratio = log_ratio.masked_fill(padding, 0.0).exp()
    rho, trace = ratio.clamp(max=rho_bar), ratio.clamp(max=c_bar)
    following_value = _next_value(value, final_value, terminated, length)
    delta = (rho * (reward + gamma * following_value - value)).masked_fill(padding, 0.0)
    correction = _accumulate(delta, _discount(gamma, terminated, delta) * trace)
    target = (value + correction).masked_fill(padding, 0.0)
    following_target = _next_value(target, final_value, terminated, length)
    advantage = rho * (reward + gamma * following_target - value)
    return VTrace(target, advantage.masked_fill(padding, 0.0))


def _accumulate(delta: Tensor, carry: Tensor) -> Tensor:
    """Return x_t = delta_t + carry_t x_{t+1}, `[T, B]`, zero after the end."""
    total = torch.zeros_like(delta)
    following = torch.zeros_like(delta[0])
    for t in reversed(range(len(delta))):
        following = delta[t] + carry[t] * following
        total[t] = following
    return total


def _discount(gamma: float, terminated: Tensor, like: Tensor) -> Tensor:
    return gamma * (~terminated).to(like.dtype)


def _next_value(value: Tensor, final_value: Tensor, terminated: Tensor, length: Tensor) -> Tensor:
    """Return V_{t+1} `[T, B]`: the final value after each last valid step, 0 after termination."""
    following = torch.cat([value[1:], final_value[None]])
    last = length[None].long() - 1
    following = following.scatter(0, last, final_value[None].to(following.dtype))
    return following.masked_fill(terminated, 0.0)


def _padding(
    reward: Tensor, value: Tensor, final_value: Tensor, terminated: Tensor, length: Tensor
) -> Tensor:
    """Check the arguments and return which steps are not valid, bool `[T, B]`.

    Padding is filled, never multiplied by zero: it may hold NaN.
    """
    if reward.ndim != 2 or not reward.numel():
        raise ValueError(f"reward: expected [T, B], not empty, got shape {tuple(reward.shape)}")
    _check("value", value, reward.shape)
    _check("terminated", terminated, reward.shape)
    _check("final_value", final_value, reward.shape[1:])
    _check("length", length, reward.shape[1:])
    if terminated.dtype != torch.bool:
        raise ValueError(f"terminated: expected bool, got {terminated.dtype}")
    _check_length(length, len(reward))
    time = torch.arange(len(reward), device=reward.device)[:, None]
    return time >= length


def _check_length(length: Tensor, num_steps: int) -> None:
    if length.dtype.is_floating_point or length.dtype == torch.bool:
        raise ValueError(f"length: expected integers, got {length.dtype}")
    # Reading a value would make a GPU wait; there the scatter in _next_value asserts the range.
    if length.device.type == "cpu" and bool(((length < 1) | (length > num_steps)).any()):
        raise ValueError(
            f"length: expected 1 to T={num_steps} valid steps, got {length.tolist()}: "
            "leave out segments without a step"
        )


def _check_fraction(name: str, number: float) -> None:
    if not 0.0 <= number <= 1.0:
        raise ValueError(f"{name}: expected 0 to 1, got {number}")


def _check(name: str, tensor: Tensor, shape: torch.Size) -> None:
    if tensor.shape != shape:
        raise ValueError(f"{name}: expected shape {tuple(shape)}, got {tuple(tensor.shape)}")
