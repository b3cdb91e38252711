"""PPO for any action distribution: log probabilities and entropies come in as tensors.

PPO takes several gradient steps on one batch, and stops the gradient of an action once its
probability has moved far enough. Columns are `[N]`, or all of one other shape.
`bray_algo.ppo_loss` is `loss` for one categorical action; `clipped_surrogate`,
`kl_penalised_surrogate` and `value_error` are its parts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bray_algo.losses.reductions import LossTerms, masked, masked_mean
from bray_algo.precision import MAX_LOG_RATIO
from bray_algo.validation.scalars import check_limit, check_not_negative, check_positive
from bray_algo.validation.tensors import check_columns, check_flags
from bray_algo.validation.values import check_finite


def loss(
    log_prob: Tensor,
    entropy: Tensor,
    value: Tensor,
    old_log_prob: Tensor,
    advantage: Tensor,
    target: Tensor,
    *,
    clip: float = 0.2,
    dual_clip: float | None = None,
    value_coefficient: float = 0.5,
    entropy_coefficient: float = 0.0,
    value_clip: float | None = None,
    old_value: Tensor | None = None,
    valid: Tensor | None = None,
) -> tuple[Tensor, LossTerms]:
    """Return PPO's clipped loss.

    Schulman et al. 2017, "Proximal policy optimization algorithms", equations 7 and 9.

    Args:
        log_prob: Log probability of the actions taken, under the current policy, `[N]`; with
            several heads their sum.
        entropy: Entropy of the current policy in nats, `[N]`.
        value: Prediction of the current value function, `[N]`.
        old_log_prob: Log probability of those actions when they were taken, `[N]`.
        advantage: How much better each action was than the policy's average, such as `gae` gives
            it, `[N]`, a constant. Usually normalised before (`reductions.standardised`).
        target: Return that the value is regressed to, `[N]`, a constant.
        clip: ε, how far π/π_old may leave 1 before its gradient stops; usually 0.1 to 0.3. Too
            large lets one batch ruin the policy; too small learns slowly.
        dual_clip: Bound c > 1 of `clipped_surrogate` where advantages are negative, usually 3;
            None is no bound.
        value_coefficient: Weight c₁ of the value's mean squared error, usually 0.5 to 1. Where
            policy and value share a network, too large drowns the policy's gradient, and too small
            leaves advantages noisy.
        entropy_coefficient: Weight c₂ of the entropy bonus, usually 0 to 0.02. Too large keeps the
            policy random; too small lets it settle before it has explored.
        value_clip: Distance from `old_value` beyond which a value gains nothing more by moving, in
            units of the return; None is no clip. Small ones slow the value function down.
        old_value: Prediction of the value function when the actions were taken, `[N]`; given
            together with `value_clip`.
        valid: Samples that count, bool `[N]`; None is all.

    Returns:
        The loss, and `policy_loss`, `value_loss`, `entropy`, `approx_kl` (Schulman's k3 estimate
        of KL(old ‖ new)) and `clip_fraction`.

    Raises:
        ValueError: shapes do not agree, a number is not finite, a clip is out of its range, or one
            of `value_clip` and `old_value` is given without the other.
    """
    check_columns(log_prob, entropy=entropy, value=value)
    check_columns(log_prob, old_log_prob=old_log_prob, advantage=advantage, target=target)
    check_finite(valid, entropy=entropy)
    policy_loss, terms = clipped_surrogate(
        log_prob, old_log_prob, advantage, clip=clip, dual_clip=dual_clip, valid=valid
    )
    value_loss = value_error(value, target, value_clip=value_clip, old_value=old_value, valid=valid)
    return actor_critic(
        policy_loss,
        value_loss,
        masked_mean(entropy, valid),
        value_coefficient,
        entropy_coefficient,
        terms,
    )


def actor_critic(
    policy_loss: Tensor,
    value_loss: Tensor,
    entropy: Tensor,
    value_coefficient: float,
    entropy_coefficient: float,
    terms: LossTerms | None = None,
) -> tuple[Tensor, LossTerms]:
    """Return policy_loss + c₁ value_loss − c₂ entropy of three scalars, and their terms.

    Raises:
        ValueError: a coefficient is negative or not finite.
    """
    check_not_negative("value_coefficient", value_coefficient)
    check_not_negative("entropy_coefficient", entropy_coefficient)
    total = policy_loss + value_coefficient * value_loss - entropy_coefficient * entropy
    parts = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
    return total, {**{name: part.detach() for name, part in parts.items()}, **(terms or {})}


def clipped_surrogate(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantage: Tensor,
    *,
    clip: float = 0.2,
    dual_clip: float | None = None,
    valid: Tensor | None = None,
) -> tuple[Tensor, LossTerms]:
    """Return −L^CLIP, and its terms `approx_kl` and `clip_fraction`.

    Schulman et al. 2017, equation 7: the mean of min(r A, clip(r, 1 − ε, 1 + ε) A), r = π/π_old.
    With `dual_clip` c > 1 the objective of a negative advantage A is not less than c A, however
    great the ratio: Ye et al. 2020, "Mastering complex control in MOBA games with deep
    reinforcement learning", "Dual-clip PPO" (c = 3). Arguments as in `loss`.

    Raises:
        ValueError: shapes do not agree, or a clip is out of its range.
    """
    check_columns(log_prob, old_log_prob=old_log_prob, advantage=advantage)
    check_flags("valid", valid, log_prob.shape)
    check_finite(valid, log_prob=log_prob, old_log_prob=old_log_prob, advantage=advantage)
    check_limit("clip", clip)
    if dual_clip is not None and not dual_clip > 1:
        raise ValueError(f"dual_clip: expected more than 1, got {dual_clip}")
    log_ratio, advantage = _log_ratio(log_prob, old_log_prob, advantage, valid)
    ratio = log_ratio.exp()
    # The lower of both, so that a step is never rewarded for leaving the clip, only for coming
    # back.
    objective = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
    if dual_clip is not None:
        # Without this bound a negative advantage times a great ratio pushes without limit.
        bound = torch.maximum(objective, dual_clip * advantage)
        objective = torch.where(advantage < 0, bound, objective)
    # Counted on both sides, also where the clip does not bind because the advantage pulls back.
    clipped = ((ratio.detach() - 1).abs() > clip).to(ratio.dtype)
    terms = {
        "approx_kl": _approx_kl(log_ratio, valid),
        "clip_fraction": masked_mean(clipped, valid),
    }
    return -masked_mean(objective, valid), terms


def kl_penalised_surrogate(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantage: Tensor,
    kl: Tensor,
    *,
    kl_coefficient: float,
    valid: Tensor | None = None,
) -> tuple[Tensor, LossTerms]:
    """Return −L^KLPEN, and its terms `approx_kl` and `kl`; β comes from `next_kl_coefficient`.

    Schulman et al. 2017, equation 8.

    Args:
        log_prob: Log probability of the actions taken, under the current policy, `[N]`.
        old_log_prob: Log probability of those actions when they were taken, `[N]`.
        advantage: Advantage of each action, `[N]`, a constant.
        kl: KL(old ‖ new) of the whole distributions, `[N]`, as `categorical.kl` gives it.
        kl_coefficient: Weight β of the penalty; the paper begins at 1. Too large stops learning,
            too small allows steps that ruin the policy: `next_kl_coefficient` finds it.
        valid: Samples that count, bool `[N]`; None is all.

    Raises:
        ValueError: shapes do not agree, or β is negative.
    """
    check_columns(log_prob, old_log_prob=old_log_prob, advantage=advantage, kl=kl)
    check_flags("valid", valid, log_prob.shape)
    check_finite(valid, log_prob=log_prob, old_log_prob=old_log_prob, advantage=advantage, kl=kl)
    check_not_negative("kl_coefficient", kl_coefficient)
    log_ratio, advantage = _log_ratio(log_prob, old_log_prob, advantage, valid)
    mean_kl = masked_mean(kl, valid)
    policy_loss = -masked_mean(log_ratio.exp() * advantage, valid) + kl_coefficient * mean_kl
    return policy_loss, {"approx_kl": _approx_kl(log_ratio, valid), "kl": mean_kl.detach()}


def next_kl_coefficient(
    kl_coefficient: float,
    kl: float,
    *,
    target_kl: float,
    minimum: float = 1e-6,
    maximum: float = 1e6,
) -> float:
    """Return the β of the next policy update, from the KL that this one's gave.

    Schulman et al. 2017, §4: β halves where KL < target / 1.5 and doubles where KL > 1.5 target.
    Here it is held between `minimum` and `maximum`, so that it can come back.

    Args:
        kl_coefficient: β of this update.
        kl: Mean KL(old ‖ new) after it, in nats.
        target_kl: KL that an update shall make, usually 0.003 to 0.03. Larger ones learn faster,
            until steps ruin the policy.
        minimum: Least β.
        maximum: Greatest β.

    Raises:
        ValueError: the KL is NaN, β negative, or the target not positive.
    """
    check_not_negative("kl_coefficient", kl_coefficient)
    check_positive("target_kl", target_kl)
    check_positive("minimum", minimum)
    if not maximum >= minimum:
        raise ValueError(f"maximum: expected minimum={minimum} or more, got {maximum}")
    if kl != kl:
        raise ValueError("kl: expected a number, got nan: the policy has diverged")
    if kl < target_kl / 1.5:
        kl_coefficient /= 2
    elif kl > target_kl * 1.5:
        kl_coefficient *= 2
    return min(max(kl_coefficient, minimum), maximum)


def value_error(
    value: Tensor,
    target: Tensor,
    *,
    value_clip: float | None = None,
    old_value: Tensor | None = None,
    valid: Tensor | None = None,
) -> Tensor:
    """Return the mean squared error of values `[N]`, clipped around `old_value [N]` if given.

    With a clip it is the greater of two errors: of V, and of V held within `value_clip` of
    `old_value` (Engstrom et al. 2020, "Implementation matters in deep policy gradients", §3).
    Arguments as in `loss`.

    Raises:
        ValueError: `loss` would refuse an argument.
    """
    check_columns(value, target=target, old_value=old_value)
    check_flags("valid", valid, value.shape)
    check_finite(valid, value=value, target=target, old_value=old_value)
    if (value_clip is None) != (old_value is None):
        given = "value_clip" if old_value is None else "old_value"
        raise ValueError(f"expected value_clip and old_value, got {given} alone: give both or none")
    value, target = masked(valid, value, target.detach())
    error = (value - target).square()
    if value_clip is not None and old_value is not None:
        check_limit("value_clip", value_clip)
        (old_value,) = masked(valid, old_value.detach())
        held = old_value + (value - old_value).clamp(-value_clip, value_clip)
        # The greater of both: beyond the clip, moving on towards the target gains nothing.
        error = torch.maximum(error, (held - target).square())
    return masked_mean(error, valid)


def _log_ratio(
    log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, valid: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return log π − log π_old, bounded above, and the advantage, a constant."""
    columns = (log_prob, old_log_prob.detach(), advantage.detach())
    log_prob, old_log_prob, advantage = masked(valid, *columns)
    return (log_prob - old_log_prob).clamp(max=MAX_LOG_RATIO), advantage


def _approx_kl(log_ratio: Tensor, valid: Tensor | None) -> Tensor:
    # k3 of Schulman 2020, "Approximating KL divergence": unbiased, and never below 0.
    log_ratio = log_ratio.detach()
    return masked_mean(log_ratio.exp() - 1 - log_ratio, valid)
