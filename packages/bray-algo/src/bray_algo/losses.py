"""Losses over flat batches `[N]`: each returns the loss and its terms by name.

`ppo_loss` and `policy_gradient_loss` are for one categorical action; `clipped_surrogate` and
`value_error` are their parts, for any other action distribution.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bray_algo import categorical

Terms = dict[str, Tensor]

_MAX_LOG_RATIO = 20.0
"""Where the ratio stops: finite in float32 (e^89 is not), far beyond any ε. No gradient there."""


def ppo_loss(
    logits: Tensor,
    value: Tensor,
    action: Tensor,
    old_log_prob: Tensor,
    advantage: Tensor,
    target: Tensor,
    *,
    clip: float = 0.2,
    value_coefficient: float = 0.5,
    entropy_coefficient: float = 0.0,
    value_clip: float | None = None,
    old_value: Tensor | None = None,
) -> tuple[Tensor, Terms]:
    """Return PPO's clipped loss for discrete actions.

    Schulman et al. 2017, "Proximal policy optimization algorithms", equations 7 and 9.

    Args:
        logits: of the current policy, `[N, A]`.
        value: of the current value function, `[N]`.
        action: taken, `[N]`.
        old_log_prob: of those actions when they were taken, `[N]`.
        advantage: `[N]`, a constant; normalise it before, if you want to.
        target: what the value is regressed to, `[N]`, a constant.
        clip: ε.
        value_coefficient: c₁, of the mean squared error.
        entropy_coefficient: c₂.
        value_clip: how far the value may gain by leaving `old_value`; None is no clip.
        old_value: of the value function when the actions were taken, `[N]`; with `value_clip`.

    Returns:
        The loss, and `policy_loss`, `value_loss`, `entropy`, `approx_kl` (Schulman's k3 estimate
        of KL(old ‖ new)) and `clip_fraction`.

    Raises:
        ValueError: shapes do not agree, a clip is not positive, or one of `value_clip` and
            `old_value` is given without the other.
    """
    _check_columns(
        logits,
        value=value,
        action=action,
        old_log_prob=old_log_prob,
        advantage=advantage,
        target=target,
    )
    log_prob = categorical.log_prob(logits, action)
    policy_loss, terms = clipped_surrogate(log_prob, old_log_prob, advantage, clip=clip)
    value_loss = value_error(value, target, value_clip=value_clip, old_value=old_value)
    entropy = categorical.entropy(logits).mean()
    loss = policy_loss + value_coefficient * value_loss - entropy_coefficient * entropy
    return loss, {**_actor_critic_terms(policy_loss, value_loss, entropy), **terms}


def clipped_surrogate(
    log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, *, clip: float = 0.2
) -> tuple[Tensor, Terms]:
    """Return −L^CLIP, and its terms `approx_kl` and `clip_fraction`.

    Schulman et al. 2017, equation 7. All columns `[N]`, `log_prob` from any distribution.

    Raises:
        ValueError: shapes do not agree, or the clip is not positive.
    """
    _check_like("old_log_prob", old_log_prob, log_prob.shape)
    _check_like("advantage", advantage, log_prob.shape)
    _check_positive("clip", clip)
    advantage = advantage.detach()
    log_ratio = (log_prob - old_log_prob.detach()).clamp(max=_MAX_LOG_RATIO)
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip, 1 + clip)
    loss = -torch.minimum(ratio * advantage, clipped * advantage).mean()
    with torch.no_grad():
        approx_kl = (ratio - 1 - log_ratio).mean()
        clip_fraction = ((ratio - 1).abs() > clip).to(ratio.dtype).mean()
    return loss, {"approx_kl": approx_kl, "clip_fraction": clip_fraction}


def value_error(
    value: Tensor,
    target: Tensor,
    *,
    value_clip: float | None = None,
    old_value: Tensor | None = None,
) -> Tensor:
    """Return the mean squared error of values `[N]`, clipped around `old_value [N]` if given.

    Clipped: the greater error of V and of V held within `value_clip` of `old_value`; Engstrom et
    al. 2020, "Implementation matters in deep policy gradients", §3.

    Raises:
        ValueError: as in `ppo_loss`.
    """
    _check_like("target", target, value.shape)
    target = target.detach()
    error = (value - target).square()
    if (value_clip is None) != (old_value is None):
        given = "value_clip" if old_value is None else "old_value"
        raise ValueError(f"expected value_clip and old_value, got {given} alone: give both or none")
    if value_clip is not None and old_value is not None:
        _check_like("old_value", old_value, value.shape)
        _check_positive("value_clip", value_clip)
        old_value = old_value.detach()
        held = old_value + (value - old_value).clamp(-value_clip, value_clip)
        error = torch.maximum(error, (held - target).square())
    return error.mean()


def policy_gradient_loss(
    logits: Tensor,
    value: Tensor,
    action: Tensor,
    advantage: Tensor,
    target: Tensor,
    *,
    value_coefficient: float = 0.5,
    entropy_coefficient: float = 0.01,
) -> tuple[Tensor, Terms]:
    """Return the actor-critic loss of A2C, and with V-trace's advantage and target of IMPALA.

    Mnih et al. 2016, Algorithm S3; Espeholt et al. 2018, §4.2. Arguments as in `ppo_loss`.
    """
    _check_columns(logits, value=value, action=action, advantage=advantage, target=target)
    policy_loss = -(categorical.log_prob(logits, action) * advantage.detach()).mean()
    value_loss = value_error(value, target)
    entropy = categorical.entropy(logits).mean()
    loss = policy_loss + value_coefficient * value_loss - entropy_coefficient * entropy
    return loss, _actor_critic_terms(policy_loss, value_loss, entropy)


def behaviour_cloning_loss(logits: Tensor, action: Tensor) -> tuple[Tensor, Terms]:
    """Return −log π of demonstrated actions, and the `accuracy` of the most likely action.

    Pomerleau 1989, "ALVINN".
    """
    _check_columns(logits, action=action)
    loss = -categorical.log_prob(logits, action).mean()
    accuracy = (categorical.mode(logits) == action).to(loss.dtype).mean()
    return loss, {"accuracy": accuracy}


def _actor_critic_terms(policy_loss: Tensor, value_loss: Tensor, entropy: Tensor) -> Terms:
    return {
        "policy_loss": policy_loss.detach(),
        "value_loss": value_loss.detach(),
        "entropy": entropy.detach(),
    }


def _check_columns(logits: Tensor, **columns: Tensor) -> None:
    if logits.ndim != 2 or not logits.numel():
        raise ValueError(f"logits: expected [N, A], not empty, got shape {tuple(logits.shape)}")
    for name, column in columns.items():
        _check_like(name, column, logits.shape[:1])


def _check_like(name: str, column: Tensor, shape: torch.Size) -> None:
    if column.shape != shape:
        raise ValueError(
            f"{name}: expected shape {tuple(shape)}, got {tuple(column.shape)}: "
            "flatten time and batch to one dimension N"
        )


def _check_positive(name: str, number: float) -> None:
    if not number > 0:
        raise ValueError(f"{name}: expected a positive number, got {number}")
