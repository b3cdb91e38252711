"""What a policy decided, and what decides."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from bray_core.nested import Nested


class Decision(NamedTuple):
    """An action and the logarithm of its probability (density)."""

    action: Any
    log_prob: float


class Decoder(Protocol):
    """Chooses an action from one row of outputs."""

    def sample(self, outputs: Nested, rng: random.Random) -> Decision:
        """Draw an action."""
        ...

    def mode(self, outputs: Nested) -> Decision:
        """Return the most likely action."""
        ...


def all_of(choices: Sequence[Decision]) -> Decision:
    """Return several choices as one action, int64 `[K]`."""
    action = np.array([choice.action for choice in choices], np.int64)
    return Decision(action, sum(choice.log_prob for choice in choices))


def both_of(choices: Decision, reals: Decision) -> Decision:
    """Return choices and reals as one action, float32 `[K + D]`."""
    action = np.concatenate([choices.action, reals.action], dtype=np.float32)
    return Decision(action, choices.log_prob + reals.log_prob)
