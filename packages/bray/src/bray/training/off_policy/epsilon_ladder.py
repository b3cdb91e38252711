"""ε of each worker: the first explores as is published, the last hardly at all.

Horgan et al. 2018, "Distributed prioritized experience replay": of N workers, worker i acts with
ε^(1 + 7 i / (N − 1)). ε lies in the published weights, which all workers share; so each worker
changes the chances that its model answers with.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bray_core.nested import Nested
from bray_core.protocols import Answer, ModelProtocol

_STEEPNESS = 7.0
"""α of the paper."""


def exponent(worker: int, num_workers: int) -> float:
    """Return 1 + 7 i / (N − 1) of worker i of N; 1 of a single one."""
    return 1.0 + _STEEPNESS * worker / max(1, num_workers - 1)


def with_exponent(logits: npt.NDArray[Any], power: float) -> npt.NDArray[Any]:
    """Return the logits `[B, A]` of an ε-greedy policy for ε^power in the place of ε.

    All but the best of the k allowed actions have ε / A of the chance, the best 1 − ε + ε / A: so
    the ratio of the two tells ε. Actions that are not allowed, whose chance is 0, keep it.

    Args:
        logits: those of `bray_algo.losses.dqn.epsilon_greedy`, masked or not.
        power: exponent of ε.
    """
    number = logits.shape[-1]
    best = logits.max(-1, keepdims=True)
    is_best = np.arange(number) == logits.argmax(-1)[..., None]
    is_other = ~is_best & (logits > _NEVER)
    other = np.where(is_other, logits, -np.inf).max(-1, keepdims=True)
    ratio = np.exp(other - best)  # (ε / A) / (1 − ε + ε / A), 0 where one action alone is allowed
    epsilon = ratio * number / (1.0 - ratio + ratio * number)
    share = np.clip(epsilon, 0.0, 1.0) ** power / number
    chance = np.where(is_best, 1.0 - share * (number - 1), share)
    changed = np.log(np.maximum(chance, 1e-9)).astype(logits.dtype)
    kept: npt.NDArray[Any] = np.where(is_best | is_other, changed, logits)
    return kept


_NEVER = -1e30
"""Logits of actions that are not allowed are below."""


class WorkerEpsilon:
    """A model as one worker asks it, its ε raised to a power.

    Args:
        model: model of an ε-greedy policy.
        power: exponent of ε.
    """

    def __init__(self, model: ModelProtocol, power: float) -> None:
        self._model, self._power = model, power

    @property
    def version(self) -> int:
        """The model's version."""
        return self._model.version

    async def infer(self, *inputs: Nested, **options: Any) -> Answer:
        """Answer as the model does, with logits of another ε."""
        answer = await self._model.infer(*inputs, **options)
        logits = with_exponent(np.asarray(answer.outputs["logits"]), self._power)
        return answer._replace(outputs={**answer.outputs, "logits": logits})

    def __getattr__(self, name: str) -> Any:
        """Leave all else to the model."""
        if name.startswith("_"):  # while it is unpickled
            raise AttributeError(name)
        return getattr(self._model, name)
