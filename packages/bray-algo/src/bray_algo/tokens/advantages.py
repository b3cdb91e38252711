"""Advantages of sampled answers: rewards compared with other answers, without a value function.

`grpo` and `rloo` take one reward a sample and the group that it is compared with, `[N]`;
`sequences.spread` brings them to tokens. `reinforce_plus_plus` takes rewards of tokens, `[B, T]`.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from bray_algo.losses.reductions import masked, standardised
from bray_algo.precision import wide
from bray_algo.tokens.groups import check_groups, means, sizes
from bray_algo.tokens.sequences import check_mask, to_go
from bray_algo.validation.scalars import check_positive
from bray_algo.validation.tensors import check_numbers, check_shape
from bray_algo.validation.values import check_finite

Scale = Literal["group", "batch", "none"]
"""What `grpo` divides by: the deviation of the group, of the batch, or nothing."""


def grpo(reward: Tensor, group: Tensor, *, scale: Scale = "group", epsilon: float = 1e-6) -> Tensor:
    """Return group-relative advantages (r − mean) / (σ + ε), `[N]`, constants.

    Shao et al. 2024, "DeepSeekMath", §4.1.2. Without the deviation it is Dr. GRPO (Liu et al. 2025,
    "Understanding R1-Zero-like training", §3.2): dividing by it lets the easiest and the hardest
    prompts, whose rewards hardly differ, count most.

    Args:
        reward: Reward of each sample, `[N]`.
        group: Number of each sample's group, integers `[N]`, 0 to N − 1.
        scale: `group` divides by the deviation of each group (n − 1 in its divisor), `none` by
            nothing, `batch` by the deviation of all rewards.
        epsilon: Added to σ, so that equal rewards give 0.

    Returns:
        The advantages; a sample alone in its group gets 0.

    Raises:
        ValueError: shapes or types are not these, a reward is not finite, or `scale` is another.
    """
    check_groups(reward, group)
    check_positive("epsilon", epsilon)
    if scale not in ("group", "batch", "none"):
        raise ValueError(f"scale: expected 'group', 'batch' or 'none', got {scale!r}")
    centred = _centred(reward, group)
    if scale == "group":
        spread = centred.square()
        variance = means(spread, group) * sizes(group) / (sizes(group) - 1).clamp(min=1)
        centred = centred / (variance.sqrt() + epsilon)
    elif scale == "batch":
        rows = reward.detach().double()
        variance = (rows - rows.mean()).square().sum() / max(len(rows) - 1, 1)
        centred = centred / (variance.sqrt() + epsilon)
    return centred.to(wide(reward).dtype)


def rloo(reward: Tensor, group: Tensor) -> Tensor:
    """Return r − the mean of the other samples of its group, `[N]`, constants.

    Ahmadian et al. 2024, "Back to basics: revisiting REINFORCE style optimization", equation 8
    (Kool et al. 2019): a baseline that does not depend on the sample leaves the gradient unbiased.
    It is Dr. GRPO's advantage times n / (n − 1).

    Args:
        reward: Reward of each sample, `[N]`.
        group: Number of each sample's group, integers `[N]`, 0 to N − 1.

    Returns:
        The advantages; a sample alone in its group has no baseline and gets 0.

    Raises:
        ValueError: shapes or types are not these, or a reward is not finite.
    """
    check_groups(reward, group)
    size = sizes(group)
    return (_centred(reward, group) * size / (size - 1).clamp(min=1)).to(wide(reward).dtype)


def reinforce_plus_plus(
    token_reward: Tensor,
    mask: Tensor,
    sequence: Tensor | None = None,
    *,
    moments: Tensor | None = None,
) -> Tensor:
    """Return the reward to go, normalised over all tokens of the batch, `[B, T]`, constants.

    Hu 2025, "REINFORCE++", §3: A_t = r − β Σ_{i ≥ t} KL_i, then (A − mean) / σ over the whole
    batch, not each group. `rewards.kl_penalised` makes the rewards. Its variant with a baseline
    first takes each group's mean off: `whitened` of the spread advantages of `grpo(scale="none")`.

    Args:
        token_reward: Reward of each token, `[B, T]`.
        mask: The policy's own tokens, bool `[B, T]`.
        sequence: Number of each token's sequence, `[B, T]`; None is one sequence a row.
        moments: Sum of `token_moments` of the rewards to go over all parts and ranks; None
            normalises by what is here alone.

    Raises:
        ValueError: shapes or types are not these, or a number is not finite.
    """
    check_mask(mask, sequence)
    check_numbers("token_reward", token_reward)
    check_shape("token_reward", token_reward, mask.shape)
    check_finite(mask, token_reward=token_reward)
    return whitened(to_go(token_reward.detach(), mask, sequence), mask, moments=moments)


def whitened(advantage: Tensor, mask: Tensor, *, moments: Tensor | None = None) -> Tensor:
    """Return (A − mean) / σ over the policy's own tokens, 0 elsewhere, `[B, T]`, constants.

    Args:
        advantage: Advantage of each token, `[B, T]`.
        mask: The policy's own tokens, bool `[B, T]`.
        moments: Sum of `token_moments` over all parts and ranks, `[3]`; None is of what is here.

    Raises:
        ValueError: shapes or types are not these, or a number is not finite.
    """
    check_mask(mask)
    check_numbers("advantage", advantage)
    check_shape("advantage", advantage, mask.shape)
    check_finite(mask, advantage=advantage)
    if moments is None:
        return standardised(advantage, mask)
    check_numbers("moments", moments)
    check_shape("moments", moments, (3,))
    check_finite(moments=moments)
    count, total, squares = moments.double().unbind()
    count = count.clamp(min=1)
    mean = total / count
    deviation = (squares / count - mean.square()).clamp(min=0).sqrt()
    (own,) = masked(mask, (advantage.detach().double() - mean) / (deviation + 1e-8))
    return own.to(wide(advantage).dtype)


def token_moments(column: Tensor, mask: Tensor) -> Tensor:
    """Return number, sum and sum of squares of the own tokens, float64 `[3]`.

    Those of parts and ranks add up to those of the whole batch, for `whitened`.

    Args:
        column: A number for each token, `[B, T]`.
        mask: The policy's own tokens, bool `[B, T]`.

    Raises:
        ValueError: shapes or types are not these, or a number is not finite.
    """
    check_mask(mask)
    check_numbers("column", column)
    check_shape("column", column, mask.shape)
    check_finite(mask, column=column)
    (own,) = masked(mask, column.detach().double())
    return torch.stack([mask.sum().double(), own.sum(), own.square().sum()])


def _centred(reward: Tensor, group: Tensor) -> Tensor:
    """Return r − mean of the group in float64; centred twice, so that equal rewards give 0."""
    rows = reward.detach().double()
    rows = rows - means(rows, group)
    return rows - means(rows, group)
