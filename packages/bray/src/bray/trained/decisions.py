"""What a policy decided, as people read it: the action, its value, and how likely each was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from bray_actor.policy.named_outputs import is_autoregressive
from bray_core.nested import Nested

_REALS = {"mean": "mean", "alpha": "alpha", "beta": "beta", "low": "low", "high": "high"}


def described(action: Nested, outputs: Nested) -> dict[str, Any]:
    """Return a decision as a recorded reply has it.

    Args:
        action: what is done, as the environment takes it.
        outputs: what the policy's network answered for one observation; None: nothing is known.

    Returns:
        `{"action"}`, and as far as the network says it `value`, `probabilities` (float32 `[A]`, or
        a list of them for several choices at once), `mean` and `std` of reals, or the parameters
        of a Beta distribution.
    """
    found: dict[str, Any] = {"action": action}
    if not isinstance(outputs, Mapping):
        return found
    value = outputs.get("value")
    if isinstance(value, np.ndarray | np.floating) and np.size(value) == 1:
        found["value"] = float(np.reshape(value, ()))
    logits = outputs.get("logits")
    if isinstance(logits, np.ndarray) and logits.ndim == 1:
        found["probabilities"] = _softmax(logits)
    elif isinstance(logits, list | tuple) and not is_autoregressive(outputs):
        found["probabilities"] = [_softmax(np.asarray(head)) for head in logits]
    for name, shown in _REALS.items():
        if isinstance(outputs.get(name), np.ndarray):
            found[shown] = np.array(outputs[name], np.float32)
    if isinstance(outputs.get("log_std"), np.ndarray):
        found["std"] = np.exp(np.asarray(outputs["log_std"], np.float32))
    return found


def _softmax(logits: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return probabilities `[A]`; a choice of the logit −inf has none."""
    weights = np.exp(logits.astype(np.float64) - logits.max())
    shares: npt.NDArray[np.float32] = (weights / weights.sum()).astype(np.float32)
    return shares
