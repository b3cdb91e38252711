"""Learnt values of tokens: advantages by them, and their loss. PPO's part that GRPO leaves out."""

from __future__ import annotations

import torch
from torch import Tensor

from bray_algo.losses.reductions import masked
from bray_algo.precision import wide
from bray_algo.tokens.reductions import Count, token_mean
from bray_algo.tokens.sequences import check_mask
from bray_algo.validation.scalars import check_fraction, check_limit
from bray_algo.validation.tensors import check_columns, check_numbers, check_shape
from bray_algo.validation.values import check_finite


def gae(
    token_reward: Tensor,
    value: Tensor,
    mask: Tensor,
    sequence: Tensor | None = None,
    *,
    discount: float = 1.0,
    lambda_: float = 0.95,
) -> tuple[Tensor, Tensor]:
    """Return advantages by generalised advantage estimation, and what values learn, `[B, T]` each.

    Schulman et al. 2016, "High-dimensional continuous control using generalised advantage
    estimation", equation 16, over the policy's own tokens alone: the token after one is the next
    own one of its sequence, whatever others said between them, and after the last comes nothing.

    Args:
        token_reward: Reward of each token, `[B, T]`, as `rewards.at_end` or `kl_penalised` gives.
        value: Value of what comes before each token, `[B, T]`: what the rewards from this token on
            are expected to add up to.
        mask: The policy's own tokens, bool `[B, T]`.
        sequence: Number of each token's sequence, `[B, T]`; None is one sequence a row.
        discount: γ in 0..1, usually 1: answers end by themselves.
        lambda_: λ in 0..1, usually 0.95 to 1. Small trusts the values, which are wrong at first;
            1 takes the whole reward to go, which is noisier.

    Returns:
        The advantages A, and the targets A + V; constants, 0 where a token is not own.

    Raises:
        ValueError: shapes or types are not these, a number is not finite or out of its range.
    """
    check_fraction("discount", discount)
    check_fraction("lambda_", lambda_)
    check_mask(mask, sequence)
    check_numbers("token_reward", token_reward)
    check_shape("token_reward", token_reward, mask.shape)
    check_columns(token_reward, value=value)
    check_finite(mask, token_reward=token_reward, value=value)
    reward, own = masked(mask, token_reward.detach().double(), value.detach().double())
    found = torch.zeros_like(reward)
    later = torch.zeros_like(reward[:, 0])
    next_value = torch.zeros_like(later)
    numbers = torch.zeros_like(mask, dtype=torch.long) if sequence is None else sequence
    number = numbers[:, -1]
    for t in range(mask.shape[1] - 1, -1, -1):
        is_own = mask[:, t]
        is_last = is_own & (numbers[:, t] != number)
        later, next_value = later.masked_fill(is_last, 0), next_value.masked_fill(is_last, 0)
        number = torch.where(is_own, numbers[:, t], number)
        error = reward[:, t] + discount * next_value - own[:, t]
        later = torch.where(is_own, error + discount * lambda_ * later, later)
        next_value = torch.where(is_own, own[:, t], next_value)
        found[:, t] = later.masked_fill(~is_own, 0)
    kind = wide(value).dtype
    return found.to(kind), (found + own).to(kind)


def loss(
    value: Tensor,
    old_value: Tensor,
    target: Tensor,
    mask: Tensor,
    *,
    value_clip: float | None = None,
    weight: Tensor | None = None,
    num_tokens: Count | None = None,
) -> Tensor:
    """Return Σ w max((V − R)², (V held within `value_clip` of the old − R)²) / `num_tokens`.

    Engstrom et al. 2020, "Implementation matters in deep policy gradients", §3, as in
    `losses.ppo.value_error`: beyond the clip, moving on towards the target gains nothing.

    Args:
        value: Value before each token, `[B, T]`.
        old_value: The same before the first update on this batch, `[B, T]`, a constant.
        target: What the values are to be, `[B, T]`, a constant: the second result of `gae`.
        mask: The policy's own tokens, bool `[B, T]`.
        value_clip: Largest change that counts, in units of the reward; None is no clip.
        weight: Weight of each token, `[B, T]`, a constant; None is 1.
        num_tokens: Number of own tokens of the whole step, as in `reductions.token_mean`.

    Raises:
        ValueError: shapes do not agree, a number is not finite, or the clip is not positive.
    """
    check_mask(mask)
    check_numbers("value", value)
    check_shape("value", value, mask.shape)
    check_columns(value, old_value=old_value, target=target)
    check_finite(mask, value=value, old_value=old_value, target=target)
    value, old, wanted = masked(mask, value, old_value.detach(), target.detach())
    error = (value - wanted).square()
    if value_clip is not None:
        check_limit("value_clip", value_clip)
        held = old + (value - old).clamp(-value_clip, value_clip)
        error = torch.maximum(error, (held - wanted).square())
    return token_mean(error, mask, weight=weight, num_tokens=num_tokens)
