"""From a policy's outputs to actions, for whole batches: what `decoder` does for one row.

Discrete: outputs `{"logits": [N, A]}`; of several actions at once (MultiDiscrete) the logits are a
list of heads `[N, A_k]`. Continuous: `{"mean": [N, D], "log_std": [N, D]}`, a diagonal Gaussian;
with `{"low": [N, D], "high": [N, D]}` too it is squashed between these by tanh; with `pink` its
draws follow those before (`bray_actor.policy.pink_noise`); with `alpha` and `beta [N, D]` in place
of mean and deviation it is a Beta distribution between them. Choices and reals at once have both,
and one array of both as action (`bray_core.action_vector`). With
`conditional [N, S, S + D]` and `order [N, K]` each choice depends on those before
(`bray_actor.policy.autoregressive`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from bray_actor.policy.decoder import MAX_LOG_STD
from bray_actor.policy.densities import (
    BETA_OUTPUTS,
    beta_log_density,
    between,
    held_beta,
    tanh_log_slope,
    tanh_squash,
)
from bray_actor.policy.named_outputs import heads_of, is_autoregressive, order_of
from bray_actor.policy.pink_noise import NUM_OCTAVES, PinkNoise, is_pink
from bray_core.action_vector import ActionVector
from bray_core.errors import SpecError
from bray_core.nested import Nested

_LOG_2PI = math.log(2 * math.pi)


class BatchDecoder(Protocol):
    """Draws an action for each row of outputs."""

    def sample(
        self, outputs: Nested, rng: np.random.Generator
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.float64]]:
        """Return actions `[N, …]` and the logarithms of their probabilities (densities) `[N]`.

        Raises:
            SpecError: an output is missing, has another shape, or is not finite; the message
                names it.
        """
        ...


class BatchCategorical:
    """One of `num_actions` actions a row, int64 `[N]`."""

    def __init__(self, num_envs: int, num_actions: int) -> None:
        self._rows = np.arange(num_envs)
        self._shape = (num_envs, num_actions)

    def sample(
        self, outputs: Nested, rng: np.random.Generator
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.float64]]:
        """Draw by the inverse of the cumulated probabilities."""
        logits = _leaf(outputs, "logits", self._shape).astype(np.float64)
        top = logits.max(1, keepdims=True)  # NaN where a row has one
        if not np.isfinite(top).all():
            raise SpecError("model output logits: expected finite values, got a row of NaN or inf")
        logits -= top
        cumulated = np.exp(logits).cumsum(1)
        total = cumulated[:, -1]
        # Below the total even if the product rounds up: an impossible last action is never drawn.
        drawn = np.minimum(rng.random(len(total)) * total, np.nextafter(total, 0))
        action = (cumulated <= drawn[:, None]).sum(1)
        return action, logits[self._rows, action] - np.log(total)


class BatchMultiCategorical:
    """Several actions a row, one of `num_actions[k]` each, int64 `[N, K]`.

    They are independent, but where the outputs have `conditional`.
    """

    def __init__(self, num_envs: int, num_actions: Sequence[int]) -> None:
        self._heads = [BatchCategorical(num_envs, number) for number in num_actions]
        self._in_order = BatchAutoregressive(num_envs, num_actions)

    def sample(
        self, outputs: Nested, rng: np.random.Generator
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.float64]]:
        """Draw head by head; log probabilities are the heads' sums."""
        if is_autoregressive(outputs):
            return self._in_order.sample(outputs, rng)
        logits = heads_of(outputs, len(self._heads))
        drawn = [
            head.sample({"logits": part}, rng)
            for head, part in zip(self._heads, logits, strict=True)
        ]
        actions, log_probs = zip(*drawn, strict=True)
        return np.stack(actions, -1), np.sum(log_probs, axis=0)


class BatchDiagonalGaussian:
    """A real vector a row, float32 `[N, D]`."""

    def __init__(self, num_envs: int, size: int) -> None:
        self._shape = (num_envs, size)
        self._pink = PinkNoise()

    def sample(
        self, outputs: Nested, rng: np.random.Generator
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.float64]]:
        """Draw normal components: independent ones, or pink noise where the outputs say so."""
        mean = _finite("mean", _leaf(outputs, "mean", self._shape))
        log_std = _finite("log_std", _leaf(outputs, "log_std", self._shape))
        log_std = np.minimum(np.maximum(log_std, -MAX_LOG_STD), MAX_LOG_STD)
        noise = self._noise(outputs, rng)
        action = (mean + np.exp(log_std) * noise).astype(np.float32)
        density = -0.5 * (np.square(noise) + _LOG_2PI) - log_std
        if "low" not in outputs:
            return action, density.sum(1)
        low = _finite("low", _leaf(outputs, "low", self._shape))
        high = _finite("high", _leaf(outputs, "high", self._shape))
        return tanh_squash(action, low, high), (density - tanh_log_slope(action, low, high)).sum(1)

    def _noise(self, outputs: Nested, rng: np.random.Generator) -> npt.NDArray[np.float64]:
        if not is_pink(outputs):
            return rng.standard_normal(self._shape)
        return self._pink.draw(rng.standard_normal((*self._shape, NUM_OCTAVES)))


class BatchBeta:
    """A real vector between bounds a row, float32 `[N, D]`."""

    def __init__(self, num_envs: int, size: int) -> None:
        self._shape = (num_envs, size)

    def sample(
        self, outputs: Nested, rng: np.random.Generator
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.float64]]:
        """Draw independent Beta components."""
        leaves = {name: _finite(name, _leaf(outputs, name, self._shape)) for name in BETA_OUTPUTS}
        alpha, beta, low, high = held_beta(leaves)
        action = between(rng.beta(alpha, beta), low, high)
        return action, beta_log_density(action, alpha, beta, low, high).sum(1)


class BatchReals:
    """A real vector a row, float32 `[N, D]`, by whichever distribution the outputs say."""

    def __init__(self, num_envs: int, size: int) -> None:
        self._gaussian = BatchDiagonalGaussian(num_envs, size)
        self._beta = BatchBeta(num_envs, size)

    def sample(
        self, outputs: Nested, rng: np.random.Generator
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.float64]]:
        """Draw from a Beta distribution where there is `alpha`, else from a Gaussian."""
        is_beta = isinstance(outputs, dict) and "alpha" in outputs
        return (self._beta if is_beta else self._gaussian).sample(outputs, rng)


class BatchMixed:
    """Several choices and a real vector a row, float32 `[N, K + D]`.

    They are independent, but where the outputs have `conditional`.
    """

    def __init__(self, num_envs: int, num_actions: Sequence[int], size: int) -> None:
        self._choices = BatchMultiCategorical(num_envs, num_actions)
        self._reals = BatchReals(num_envs, size)
        self._in_order = BatchAutoregressive(num_envs, num_actions, size)

    def sample(
        self, outputs: Nested, rng: np.random.Generator
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.float64]]:
        """Draw both; log probabilities are the sums."""
        if is_autoregressive(outputs):
            return self._in_order.sample(outputs, rng)
        choices, of_choices = self._choices.sample(outputs, rng)
        reals, of_reals = self._reals.sample(outputs, rng)
        return np.concatenate([choices, reals], -1, dtype=np.float32), of_choices + of_reals


class BatchAutoregressive:
    """Several choices a row in an order, each given those before, and reals given all of them.

    Args:
        num_envs: number of rows N.
        num_actions: number of values of each choice.
        num_reals: number D of reals.
    """

    def __init__(self, num_envs: int, num_actions: Sequence[int], num_reals: int = 0) -> None:
        self._heads = [BatchCategorical(num_envs, number) for number in num_actions]
        self._reals = BatchReals(num_envs, num_reals) if num_reals else None
        self._num_reals = num_reals
        self._starts = list(accumulate(num_actions, initial=0))
        self._rows = np.arange(num_envs)

    def sample(
        self, outputs: Nested, rng: np.random.Generator
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.float64]]:
        """Draw one after the other; log probabilities are the sums along the way."""
        rows, number, num_values = len(self._rows), len(self._heads), self._starts[-1]
        logits = heads_of(outputs, number)
        shape = (rows, num_values, num_values + self._num_reals)
        conditional = _leaf(outputs, "conditional", shape)
        given = np.zeros((rows, shape[2]))  # what the choices so far add
        action, total = np.zeros((rows, number), np.int64), np.zeros(rows)
        for k in self._order(outputs):
            start, end = self._starts[k : k + 2]
            head = _leaf({"logits": logits[k]}, "logits", (rows, end - start))
            action[:, k], log_prob = self._heads[k].sample(
                {"logits": head + given[:, start:end]}, rng
            )
            given += conditional[self._rows, start + action[:, k]]
            total += log_prob
        if self._reals is None:
            return action, total
        mean = _leaf(outputs, "mean", (rows, self._num_reals)) + given[:, num_values:]
        reals, of_reals = self._reals.sample({**outputs, "mean": mean}, rng)
        return np.concatenate([action, reals], -1, dtype=np.float32), total + of_reals

    def _order(self, outputs: Nested) -> list[int]:
        order = _leaf(outputs, "order", (len(self._rows), len(self._heads)))
        if (order != order[0]).any():
            raise SpecError(f"model output order: expected the same in all rows, got {order}")
        return order_of(order[0], len(self._heads))


def batch_decoder(actions: ActionVector, num_envs: int) -> BatchDecoder:
    """Return what draws actions of a space for N rows."""
    if actions.is_one:
        return BatchCategorical(num_envs, actions.sizes[0])
    if not actions.sizes:
        return BatchReals(num_envs, actions.num_reals)
    if not actions.num_reals:
        return BatchMultiCategorical(num_envs, actions.sizes)
    return BatchMixed(num_envs, actions.sizes, actions.num_reals)


def _leaf(outputs: Nested, name: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    leaf = outputs.get(name) if isinstance(outputs, dict) else None
    got = np.asarray(leaf)
    if leaf is None or got.shape != shape or got.dtype.kind != "f":
        has = "nothing" if leaf is None else f"{got.dtype} {got.shape}"
        raise SpecError(f"model output {name}: expected float32 {shape}, got {has}")
    return got


def _finite(name: str, leaf: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if not math.isfinite(leaf.sum()):
        raise SpecError(f"model output {name}: expected finite values, got a row of NaN or inf")
    return leaf
