"""Losses over flat batches `[N]`: each returns the loss and its terms by name."""

from __future__ import annotations

import torch
from torch import Tensor

from bray_algo import categorical

Terms = dict[str, Tensor]


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
) -> tuple[Tensor, Terms]:
    """Return PPO's clipped loss for discrete actions.

    Schulman et al. 2017, "Proximal policy optimization algorithms", equations 7 and 9.

    Args:
        logits: of the current policy, `[N, A]`.
        value: of the current value function, `[N]`.
        action: taken, `[N]`.
        old_log_prob: of those actions when they were taken, `[N]`.
        advantage: `[N]`; normalise it before, if you want to.
        target: what the value is regressed to, `[N]`.
        clip: ε.
        value_coefficient: c₁, of the mean squared error.
        entropy_coefficient: c₂.

    Returns:
        The loss, and `policy_loss`, `value_loss`, `entropy`, `approx_kl` (Schulman's k3 estimate
        of KL(old ‖ new)) and `clip_fraction`.

    Raises:
        ValueError: shapes do not agree.
    """
    _check_batch(logits, value, action, old_log_prob, advantage, target)
    log_ratio = categorical.log_prob(logits, action) - old_log_prob
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip, 1 + clip)
    policy_loss = -torch.minimum(ratio * advantage, clipped * advantage).mean()
    value_loss = (value - target).square().mean()
    entropy = categorical.entropy(logits).mean()
    loss = policy_loss + value_coefficient * value_loss - entropy_coefficient * entropy
    with torch.no_grad():
        approx_kl = (ratio - 1 - log_ratio).mean()
        clip_fraction = ((ratio - 1).abs() > clip).to(ratio.dtype).mean()
    return loss, {
        "policy_loss": policy_loss.detach(),
        "value_loss": value_loss.detach(),
        "entropy": entropy.detach(),
        "approx_kl": approx_kl,
        "clip_fraction": clip_fraction,
    }


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
    _check_batch(logits, value, action, advantage, target)
    policy_loss = -(categorical.log_prob(logits, action) * advantage.detach()).mean()
    value_loss = (value - target.detach()).square().mean()
    entropy = categorical.entropy(logits).mean()
    loss = policy_loss + value_coefficient * value_loss - entropy_coefficient * entropy
    return loss, {
        "policy_loss": policy_loss.detach(),
        "value_loss": value_loss.detach(),
        "entropy": entropy.detach(),
    }


def behaviour_cloning_loss(logits: Tensor, action: Tensor) -> tuple[Tensor, Terms]:
    """Return −log π of demonstrated actions, and the `accuracy` of the most likely action.

    Pomerleau 1989, "ALVINN".
    """
    _check_batch(logits, action)
    loss = -categorical.log_prob(logits, action).mean()
    accuracy = (categorical.mode(logits) == action).to(loss.dtype).mean()
    return loss, {"accuracy": accuracy}


def _check_batch(logits: Tensor, *columns: Tensor) -> None:
    if logits.ndim != 2:
        raise ValueError(f"logits: expected [N, A], got shape {tuple(logits.shape)}")
    for column in columns:
        if column.shape != logits.shape[:1]:
            shapes = ", ".join(str(tuple(c.shape)) for c in columns)
            raise ValueError(f"expected columns of shape {tuple(logits.shape[:1])}, got {shapes}")
