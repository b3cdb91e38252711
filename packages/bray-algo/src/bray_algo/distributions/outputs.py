"""Log probability and entropy from a policy's named outputs, whatever its actions are.

The outputs say which distribution it is: `logits` (a tensor) a categorical, a list of `logits`
several, `mean` and `log_std` a Gaussian. They are those that `bray_actor` decodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from bray_algo.distributions import categorical, gaussian, multi_categorical


def log_prob(outputs: Mapping[str, Any], action: Tensor) -> Tensor:
    """Return log p of actions, `[…]`.

    Raises:
        ValueError: shapes do not agree.
    """
    if "mean" in outputs:
        return gaussian.log_prob(outputs["mean"], outputs["log_std"], action)
    if isinstance(outputs["logits"], list | tuple):
        return multi_categorical.log_prob(outputs["logits"], action)
    return categorical.log_prob(outputs["logits"], action)


def log_prob_and_entropy(outputs: Mapping[str, Any], action: Tensor) -> tuple[Tensor, Tensor]:
    """Return log p of actions and the entropy, `[…]` each, for little more than one of them costs.

    Raises:
        ValueError: shapes do not agree.
    """
    if "mean" in outputs or isinstance(outputs["logits"], list | tuple):
        return log_prob(outputs, action), entropy(outputs)
    return categorical.log_prob_and_entropy(outputs["logits"], action)


def entropy(outputs: Mapping[str, Any]) -> Tensor:
    """Return the entropy `[…]`, in nats."""
    if "mean" in outputs:
        return gaussian.entropy(outputs["mean"], outputs["log_std"])
    if isinstance(outputs["logits"], list | tuple):
        return multi_categorical.entropy(outputs["logits"])
    return categorical.entropy(outputs["logits"])
