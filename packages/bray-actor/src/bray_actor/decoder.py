"""From a policy's outputs to an action, in numpy and plain Python: one row at a time.

Discrete: outputs `{"logits": [A], "value": []}`. Continuous: `{"mean": [D], "log_std": [D],
"value": []}`, a diagonal Gaussian.
"""

from __future__ import annotations

import math
import random
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from bray_core.errors import SpecError
from bray_core.nested import Nested

_LOG_2PI = math.log(2 * math.pi)


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


class Categorical:
    """One of `num_actions` actions, by `logits`."""

    def __init__(self, num_actions: int) -> None:
        self._num_actions = num_actions

    def sample(self, outputs: Nested, rng: random.Random) -> Decision:
        """Draw an action, an int; log_prob by a stable log-softmax."""
        logits, top, weights = self._weights(outputs)
        total = sum(weights)
        action = _draw(weights, rng.random() * total)
        return Decision(action, logits[action] - top - math.log(total))

    def mode(self, outputs: Nested) -> Decision:
        """Return the action of the largest logit, the first of equals."""
        logits, top, weights = self._weights(outputs)
        return Decision(logits.index(top), -math.log(sum(weights)))

    def _weights(self, outputs: Nested) -> tuple[list[float], float, list[float]]:
        logits: list[float] = _leaf(outputs, "logits", (self._num_actions,)).tolist()
        top = max(logits)
        if not math.isfinite(top):
            raise SpecError(f"model output logits: expected one finite value or more, got {logits}")
        return logits, top, [math.exp(logit - top) for logit in logits]


class DiagonalGaussian:
    """A real vector, independent normal components by `mean` and `log_std`."""

    def __init__(self, size: int) -> None:
        self._size = size

    def sample(self, outputs: Nested, rng: random.Random) -> Decision:
        """Draw an action `[D]`, float32."""
        mean, std = self._parameters(outputs)
        noise = np.array([rng.gauss(0.0, 1.0) for _ in range(self._size)])
        return Decision((mean + std * noise).astype(np.float32), self._log_prob(noise, std))

    def mode(self, outputs: Nested) -> Decision:
        """Return the mean."""
        mean, std = self._parameters(outputs)
        return Decision(mean.astype(np.float32), self._log_prob(np.zeros(self._size), std))

    def _parameters(self, outputs: Nested) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        mean = _leaf(outputs, "mean", (self._size,)).astype(np.float64)
        return mean, np.exp(_leaf(outputs, "log_std", (self._size,)).astype(np.float64))

    def _log_prob(self, noise: npt.NDArray[Any], std: npt.NDArray[Any]) -> float:
        return float(-0.5 * (noise @ noise + self._size * _LOG_2PI) - np.log(std).sum())


def _draw(weights: list[float], left: float) -> int:
    """Return the index in which a walk along the weights ends after `left`."""
    for index, weight in enumerate(weights):
        left -= weight
        if left < 0.0:
            return index
    # Rounding left a rest: the last action that is possible.
    return max(index for index, weight in enumerate(weights) if weight > 0.0)


def decoder_for(outputs: Nested) -> Decoder:
    """Return the decoder that a policy's outputs call for, by their names and sizes.

    Raises:
        SpecError: neither `logits` nor `mean` and `log_std`.
    """
    if isinstance(outputs, dict) and "logits" in outputs:
        return Categorical(outputs["logits"].shape[-1])
    if isinstance(outputs, dict) and {"mean", "log_std"} <= set(outputs):
        return DiagonalGaussian(outputs["mean"].shape[-1])
    names = sorted(outputs) if isinstance(outputs, dict) else type(outputs).__name__
    raise SpecError(f"model output: expected logits, or mean and log_std, got {names}")


def _leaf(outputs: Nested, name: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    leaf = outputs.get(name) if isinstance(outputs, dict) else None
    if leaf is None or leaf.shape != shape:
        got = "nothing" if leaf is None else f"{leaf.dtype} {leaf.shape}"
        raise SpecError(f"model output {name}: expected float32 {shape}, got {got}")
    return leaf  # type: ignore[no-any-return]
