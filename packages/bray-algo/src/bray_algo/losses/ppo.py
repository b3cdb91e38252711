"""PPO for any action distribution: log probabilities and entropies come in as tensors.

Columns are `[N]`, or all of one other shape. `bray_algo.ppo_loss` is `loss` for one categorical
action; `clipped_surrogate`, `kl_penalised_surrogate` and `value_error` are its parts. In all of
them, `valid` says which samples count (bool, None: all).
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
        log_prob: of the actions taken, under the current policy, `[N]`; of several heads the sum.
        entropy: of the current policy, `[N]`.
        value: of the current value function, `[N]`.
        old_log_prob: of those actions when they were taken, `[N]`.
        advantage: `[N]`, a constant; normalise it before, if you want to.
        target: what the value is regressed to, `[N]`, a constant.
        clip: ε.
        dual_clip: c > 1 of `clipped_surrogate`; None is none.
        value_coefficient: c₁, of the mean squared error.
        entropy_coefficient: c₂.
        value_clip: how far the value may gain by leaving `old_value`; None is no clip.
        old_value: of the value function when the actions were taken, `[N]`; with `value_clip`.
        valid: which samples count.

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

    Schulman et al. 2017, equation 7. With `dual_clip` c > 1, where the advantage is negative the
    objective is not less than c times it, however great the ratio: Ye et al. 2020, "Mastering
    complex control in MOBA games with deep reinforcement learning", "Dual-clip PPO" (c = 3).

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
    objective = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
    if dual_clip is not None:
        bound = torch.maximum(objective, dual_clip * advantage)
        objective = torch.where(advantage < 0, bound, objective)
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
        log_prob: as in `loss`; so are `old_log_prob`, `advantage` and `valid`.
        kl: KL(old ‖ new) of the whole distributions, `[N]`, as `categorical.kl` gives it.
        kl_coefficient: β.

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

    Schulman et al. 2017, §4: half where KL < target / 1.5, twice where KL > 1.5 target; here held
    from `minimum` to `maximum`, so that it can come back.

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

    Clipped: the greater error of V and of V held within `value_clip` of `old_value`; Engstrom et
    al. 2020, "Implementation matters in deep policy gradients", §3.

    Raises:
        ValueError: as in `loss`.
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
    log_ratio = log_ratio.detach()
    return masked_mean(log_ratio.exp() - 1 - log_ratio, valid)
