"""Returns and advantages over time-major, ragged segments.

Shapes: T time, B segments. Segment b has `length[b]` valid steps; what comes after is padding and
gives zeros. A step that terminated has no future; a segment that ends otherwise (cut or truncated)
goes on with `final_value [B]`, the value of the observation after its last valid step.
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
    estimation", equations 11, 12 and 16: δ_t = r_t + γ V_{t+1} − V_t, A_t = δ_t + γλ A_{t+1}.

    Args:
        reward: r_t, `[T, B]`.
        value: V_t, `[T, B]`.
        final_value: V after the last valid step, `[B]`.
        terminated: whether the step ended the episode for good, bool `[T, B]`.
        length: valid steps, `[B]`, 1 to T.
        gamma: discount γ.
        lambda_: λ.

    Raises:
        ValueError: shapes do not agree.
    """
    valid = _valid(reward, value, final_value, terminated, length)
    discount = gamma * (~terminated).to(value.dtype)
    delta = reward + discount * _next_value(value, final_value, length) - value
    delta, discount = delta * valid, discount * valid
    advantage = torch.zeros_like(value)
    following = torch.zeros_like(final_value)
    for t in reversed(range(len(value))):
        following = delta[t] + lambda_ * discount[t] * following
        advantage[t] = following
    return advantage


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
    return advantage + value * _valid(reward, value, final_value, terminated, length)


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
    _check("log_ratio", log_ratio, reward.shape)
    valid = _valid(reward, value, final_value, terminated, length)
    ratio = log_ratio.exp()
    rho, trace = ratio.clamp(max=rho_bar), ratio.clamp(max=c_bar)
    discount = gamma * (~terminated).to(value.dtype)
    following_value = _next_value(value, final_value, length)
    delta = rho * (reward + discount * following_value - value) * valid
    carry = discount * trace * valid
    correction = torch.zeros_like(value)
    following = torch.zeros_like(final_value)
    for t in reversed(range(len(value))):
        following = delta[t] + carry[t] * following
        correction[t] = following
    target = (value + correction) * valid
    following_target = _next_value(target, final_value, length)
    advantage = rho * (reward + discount * following_target - value) * valid
    return VTrace(target, advantage)


def _next_value(value: Tensor, final_value: Tensor, length: Tensor) -> Tensor:
    """Return V_{t+1} `[T, B]`, with the final value after each segment's last valid step."""
    following = torch.cat([value[1:], final_value[None]])
    return following.scatter(0, length[None].long() - 1, final_value[None].to(value.dtype))


def _valid(
    reward: Tensor, value: Tensor, final_value: Tensor, terminated: Tensor, length: Tensor
) -> Tensor:
    """Check shapes and return 1 for valid steps and 0 for padding, `[T, B]`."""
    if reward.ndim != 2:
        raise ValueError(f"reward: expected [T, B], got shape {tuple(reward.shape)}")
    _check("value", value, reward.shape)
    _check("terminated", terminated, reward.shape)
    _check("final_value", final_value, reward.shape[1:])
    _check("length", length, reward.shape[1:])
    if terminated.dtype != torch.bool:
        raise ValueError(f"terminated: expected bool, got {terminated.dtype}")
    time = torch.arange(len(reward), device=reward.device)[:, None]
    return (time < length).to(value.dtype)


def _check(name: str, tensor: Tensor, shape: torch.Size) -> None:
    if tensor.shape != shape:
        raise ValueError(f"{name}: expected shape {tuple(shape)}, got {tuple(tensor.shape)}")
