"""KL(π ‖ π_ref) to a reference policy, estimated from the tokens that were sampled."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from bray_algo.losses.reductions import LossTerms, masked, masked_mean
from bray_algo.precision import MAX_LOG_RATIO
from bray_algo.tokens.reductions import Count, token_mean
from bray_algo.tokens.sequences import check_mask
from bray_algo.validation.scalars import check_not_negative
from bray_algo.validation.tensors import check_columns, check_shape
from bray_algo.validation.values import check_finite

Estimator = Literal["k1", "k2", "k3"]
"""Names of Schulman's estimates of the KL; see `kl`."""


def kl(
    log_prob: Tensor, reference_log_prob: Tensor, mask: Tensor, *, estimator: Estimator = "k3"
) -> Tensor:
    """Return an estimate of KL(π ‖ π_ref) for each token, 0 where not own, `[B, T]`.

    Schulman 2020, "Approximating KL divergence". With d = log π − log π_ref, for tokens of π:

    - `k1` = d. Its mean is the KL, and single ones may be negative. In a loss its gradient has mean
      0: it does nothing there but add noise. Use it in the reward.
    - `k2` = d² / 2. It is biased, but its gradient is the KL's own on average: right in a loss.
    - `k3` = e^−d − 1 + d. Its mean is the KL and none is negative. GRPO has it in the loss, where
      its gradient is that of KL(π_ref ‖ π) on average, and great where π_ref finds a token likely.

    On gradients: Tang and Munos 2025, "On a few pitfalls in KL divergence gradient estimation".

    Args:
        log_prob: Log probability of each token under the policy, `[B, T]`.
        reference_log_prob: The same under the reference, `[B, T]`, a constant.
        mask: The policy's own tokens, bool `[B, T]`.
        estimator: `k1`, `k2` or `k3`.

    Raises:
        ValueError: shapes or types are not these, a number is not finite, or the estimator is
            another.
    """
    check_columns(log_prob, reference_log_prob=reference_log_prob)
    check_mask(mask)
    check_shape("log_prob", log_prob, mask.shape)
    check_finite(mask, log_prob=log_prob, reference_log_prob=reference_log_prob)
    log_prob, reference = masked(mask, log_prob, reference_log_prob.detach())
    difference = log_prob - reference
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return difference.square() / 2
    if estimator == "k3":
        return (-difference).clamp(max=MAX_LOG_RATIO).exp() - 1 + difference
    raise ValueError(f"estimator: expected 'k1', 'k2' or 'k3', got {estimator!r}")


def penalty(
    log_prob: Tensor,
    reference_log_prob: Tensor,
    mask: Tensor,
    *,
    kl_coefficient: float,
    estimator: Estimator = "k3",
    weight: Tensor | None = None,
    num_tokens: Count | None = None,
) -> tuple[Tensor, LossTerms]:
    """Return β times the mean KL over tokens, to add to a loss, and the term `reference_kl`.

    The term is the plain mean over the own tokens given.

    Shao et al. 2024, "DeepSeekMath", equations 3 and 4.

    Args:
        log_prob: Log probability of each token under the current policy, `[B, T]`.
        reference_log_prob: The same under the reference, `[B, T]`, a constant.
        mask: The policy's own tokens, bool `[B, T]`.
        kl_coefficient: β, usually 0.001 to 0.04; many recipes have 0 and no reference at all. Too
            large holds the policy at the reference; too small lets it drift.
        estimator: Which estimate, as in `kl`; `k1` has no use in a loss and is refused.
        weight: Weight of each token, `[B, T]`, as in the loss it is added to; None is 1.
        num_tokens: Number of own tokens of the whole step, as in `reductions.token_mean`.

    Raises:
        ValueError: `kl` or `token_mean` would refuse an argument, β is negative, or k1 is asked
            for.
    """
    check_not_negative("kl_coefficient", kl_coefficient)
    if estimator == "k1":
        raise ValueError(
            "estimator: expected 'k2' or 'k3', got 'k1', whose gradient in a loss is noise: "
            "take it in the reward (rewards.kl_penalised)"
        )
    column = kl(log_prob, reference_log_prob, mask, estimator=estimator)
    mean = token_mean(column, mask, weight=weight, num_tokens=num_tokens)
    return kl_coefficient * mean, {"reference_kl": masked_mean(column.detach(), mask)}
