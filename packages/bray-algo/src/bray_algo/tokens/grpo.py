"""The clipped loss over tokens of PPO, GRPO, Dr. GRPO and DAPO, which differ in means and clips.

- PPO and DAPO: the mean over all tokens, as `loss` does; DAPO with `clip_high=0.28`.
- Dr. GRPO: `num_tokens` is the constant answers × greatest length.
- GRPO: `weight=reductions.sequence_weight(mask)`, `num_tokens=reductions.count_sequences(mask)`.

KL to a reference is added from `divergence.penalty`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bray_algo.losses.reductions import LossTerms
from bray_algo.tokens import ratios
from bray_algo.tokens.reductions import Count, token_mean


def loss(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantage: Tensor,
    mask: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    weight: Tensor | None = None,
    num_tokens: Count | None = None,
) -> tuple[Tensor, LossTerms]:
    """Return −Σ w min(r A, clip(r, 1 − ε_low, 1 + ε_high) A) / `num_tokens`, r = π/π_old.

    Schulman et al. 2017, "Proximal policy optimization algorithms", equation 7; Shao et al. 2024,
    "DeepSeekMath", equation 3; Yu et al. 2025, "DAPO", equation 8.

    Args:
        log_prob: Log probability of each token under the current policy, `[B, T]`.
        old_log_prob: Log probability before the first update on this batch, `[B, T]`, a constant.
        advantage: Advantage of each token, `[B, T]`, a constant: `sequences.spread` of
            `advantages.grpo` or `rloo`, or `advantages.reinforce_plus_plus`.
        mask: The policy's own tokens, bool `[B, T]`.
        clip_low: ε_low, how far the ratio may fall below 1 before its gradient stops; usually 0.2.
            Too large lets one batch ruin the policy; too small unlearns mistakes slowly.
        clip_high: ε_high, the same above 1; usually 0.2, in DAPO 0.28. A higher one lets unlikely
            tokens become likely sooner and keeps the entropy up; too high is unstable.
        dual_clip: Bound c > 1: the objective of a negative advantage A is not less than c A, as in
            `losses.ppo.clipped_surrogate`; usually 3. None is no bound.
        weight: Weight of each token, `[B, T]`, a constant, such as `sampler.truncated_weight`;
            None is 1.
        num_tokens: Number of own tokens of the whole step, as in `reductions.token_mean`.

    Returns:
        The loss, and `policy_loss`, `approx_kl` (Schulman's k3 estimate of KL(old ‖ new)),
        `clip_fraction_low` and `clip_fraction_high`, the fractions of tokens without a gradient.

    Raises:
        ValueError: shapes do not agree, a number is not finite, a clip is out of its range, or
            `num_tokens` is not positive.
    """
    if dual_clip is not None and not dual_clip > 1:
        raise ValueError(f"dual_clip: expected more than 1, got {dual_clip}")
    log_ratio, advantage = ratios.log_ratios(log_prob, old_log_prob, advantage, mask)
    ratio = log_ratio.exp()
    objective = ratios.clipped(ratio, advantage, clip_low, clip_high)
    if dual_clip is not None:
        # Without this bound a negative advantage times a great ratio pushes without limit.
        bound = torch.maximum(objective, dual_clip * advantage)
        objective = torch.where(advantage < 0, bound, objective)
    total = -token_mean(objective, mask, weight=weight, num_tokens=num_tokens)
    terms = ratios.measures(log_ratio, ratio, advantage, mask, clip_low, clip_high)
    return total, {"policy_loss": total.detach(), **terms}
