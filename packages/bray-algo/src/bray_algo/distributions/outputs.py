"""Log probability and entropy from a policy's named outputs, whatever its actions are.

The outputs say which distribution it is: `logits` (a tensor) a categorical, a list of `logits`
several, `mean` and `log_std` a Gaussian, with `low` and `high` too one that tanh squashes between
them, `alpha`, `beta`, `low` and `high` a Beta between them. A list of `logits` beside reals is both
at once: the action `[…, K + D]` has the choices first. With `conditional` later choices depend on
earlier ones (`autoregressive`). They are those that `bray_actor` decodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bray_algo.distributions import (
    autoregressive,
    beta,
    categorical,
    gaussian,
    multi_categorical,
    squashed_gaussian,
)


def log_prob(outputs: Mapping[str, Any], action: Tensor) -> Tensor:
    """Return log p of actions, `[…]`.

    Raises:
        ValueError: shapes do not agree.
    """
    if autoregressive.is_autoregressive(outputs):
        outputs = autoregressive.given(outputs, action[..., : len(outputs["logits"])])
    logits = outputs.get("logits")
    if isinstance(logits, Tensor):
        return categorical.log_prob(logits, action)
    if not _has_reals(outputs):
        return multi_categorical.log_prob(outputs["logits"], action)
    if logits is None:
        return _log_prob_of_reals(outputs, action)
    choices, reals = action[..., : len(logits)].long(), action[..., len(logits) :]
    return multi_categorical.log_prob(logits, choices) + _log_prob_of_reals(outputs, reals)


def log_prob_and_entropy(outputs: Mapping[str, Any], action: Tensor) -> tuple[Tensor, Tensor]:
    """Return log p of actions and the entropy, `[…]` each, for little more than one of them costs.

    Raises:
        ValueError: shapes do not agree.
    """
    if _has_reals(outputs) or isinstance(outputs["logits"], list | tuple):
        return log_prob(outputs, action), entropy(outputs, action)
    return categorical.log_prob_and_entropy(outputs["logits"], action)


def entropy(outputs: Mapping[str, Any], action: Tensor | None = None) -> Tensor:
    """Return the entropy `[…]`, in nats.

    Args:
        outputs: a policy's outputs.
        action: what was drawn. Where later choices depend on earlier ones, with more than
            `autoregressive.MAX_JOINT` combinations, it gives an estimate: the entropies along the
            action's path, without bias if this policy drew it. Their gradient leaves out that
            earlier choices say which later ones are met. Everything else is exact without it.

    Raises:
        ValueError: no action is given where an estimate needs it.
    """
    if autoregressive.is_autoregressive(outputs):
        return _entropy_in_order(outputs, action)
    return _independent_entropy(outputs)


def mode(outputs: Mapping[str, Any]) -> Tensor:
    """Return the most likely action, as `bray_actor` does where it does not draw.

    A choice `[…]`, choices `[…, K]`, reals `[…, D]`, or choices and reals `[…, K + D]`.
    """
    logits = outputs.get("logits")
    if isinstance(logits, Tensor):
        return logits.argmax(-1)
    parts: list[Tensor] = []
    if autoregressive.is_autoregressive(outputs):
        choices, outputs = autoregressive.mode(outputs)
        parts.append(choices)
    elif logits is not None:
        parts.append(torch.stack([head.argmax(-1) for head in logits], -1))
    if _has_reals(outputs):
        parts.append(_mode_of_reals(outputs))
    return parts[0] if len(parts) == 1 else torch.cat([part.float() for part in parts], -1)


def _independent_entropy(outputs: Mapping[str, Any]) -> Tensor:
    logits = outputs.get("logits")
    if isinstance(logits, Tensor):
        return categorical.entropy(logits)
    if not _has_reals(outputs):
        return multi_categorical.entropy(outputs["logits"])
    of_reals = _entropy_of_reals(outputs)
    return of_reals if logits is None else of_reals + multi_categorical.entropy(logits)


def _entropy_in_order(outputs: Mapping[str, Any], action: Tensor | None) -> Tensor:
    every = autoregressive.every_choice(outputs)
    if every is not None:
        choices, path = every
        lead = path["logits"][0].shape[:-1]  # […, J]
        log_p = multi_categorical.log_prob(path["logits"], choices.expand(*lead, -1))
        of_reals = _entropy_of_reals(path) if _has_reals(path) else 0.0
        return (log_p.exp() * (of_reals - log_p)).sum(-1)
    if action is None:
        raise ValueError("action: expected the action that was drawn, to estimate the entropy by")
    path = autoregressive.given(outputs, action[..., : len(outputs["logits"])])
    return _independent_entropy(path)


def _has_reals(outputs: Mapping[str, Any]) -> bool:
    return "mean" in outputs or "alpha" in outputs


def _mode_of_reals(outputs: Mapping[str, Any]) -> Tensor:
    if "low" not in outputs:
        mean: Tensor = outputs["mean"]
        return mean
    low, high = outputs["low"], outputs["high"]
    if "alpha" in outputs:
        reals: Tensor = low + (high - low) * beta.mode(outputs["alpha"], outputs["beta"])
    else:
        reals = low + (high - low) * 0.5 * (torch.tanh(outputs["mean"]) + 1.0)
    return reals


def _log_prob_of_reals(outputs: Mapping[str, Any], action: Tensor) -> Tensor:
    if "alpha" in outputs:
        low, high = outputs["low"], outputs["high"]
        unit = ((action - low) / (high - low)).clamp(0.0, 1.0)  # rounding may lie beyond
        shift: Tensor = (high - low).log().sum(-1)
        return beta.log_prob(outputs["alpha"], outputs["beta"], unit) - shift
    mean, log_std = outputs["mean"], outputs["log_std"]
    if "low" not in outputs:
        return gaussian.log_prob(mean, log_std, action)
    low, high = outputs["low"], outputs["high"]
    unit = 2 * (action - low) / (high - low) - 1
    density = squashed_gaussian.log_prob(mean, log_std, unit)
    scale: Tensor = ((high - low) / 2).log().sum(-1)
    return density - scale


def _entropy_of_reals(outputs: Mapping[str, Any]) -> Tensor:
    if "alpha" in outputs:
        shift: Tensor = (outputs["high"] - outputs["low"]).log().sum(-1)
        return beta.entropy(outputs["alpha"], outputs["beta"]) + shift
    mean, log_std = outputs["mean"], outputs["log_std"]
    if "low" not in outputs:
        return gaussian.entropy(mean, log_std)
    scale: Tensor = ((outputs["high"] - outputs["low"]) / 2).log().sum(-1)
    return squashed_gaussian.entropy(mean, log_std) + scale
