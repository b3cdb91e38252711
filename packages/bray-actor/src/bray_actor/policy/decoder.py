"""From a policy's outputs to an action, in numpy and plain Python: one row at a time.

Discrete: outputs `{"logits": [A], "value": []}`; of several actions at once (MultiDiscrete) the
logits are a list of heads `[A_k]`. Continuous: `{"mean": [D], "log_std": [D], "value": []}`, a
diagonal Gaussian; with `{"low": [D], "high": [D]}` too it is squashed between these by tanh;
`{"alpha": [D], "beta": [D], "low": [D], "high": [D]}` is a Beta distribution between them. Choices
and reals at once have both, a list of `logits` and what describes the reals: the action is one
array of both (`bray_core.action_vector`).

An action that must not be taken has a logit far below the others: masking is the module's part.
What is drawn and its probability are those of `bray_algo`: the least finite logit, as its mask
gives, or −inf is no chance, and a `log_std` is held within −20 and 20.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from bray_core.errors import SpecError
from bray_core.nested import Nested

_LOG_2PI = math.log(2 * math.pi)
MAX_LOG_STD = 20.0
"""Bound of a log standard deviation, on both sides: that of `bray_algo.distributions.gaussian`."""

BETA_OUTPUTS = ("alpha", "beta", "low", "high")
"""Outputs of a policy whose reals have Beta distributions."""
_BETA_HELD = (1e-3, 1e6)
"""Bounds of alpha and beta: those of `bray_algo.distributions.beta`."""

_Numbers = npt.NDArray[Any]


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
        logits, top, weights, total = self._weights(outputs)
        action = _draw(weights, rng.random() * total)
        return Decision(action, logits[action] - top - math.log(total))

    def mode(self, outputs: Nested) -> Decision:
        """Return the action of the largest logit, the first of equals."""
        logits, top, _, total = self._weights(outputs)
        return Decision(logits.index(top), -math.log(total))

    def _weights(self, outputs: Nested) -> tuple[list[float], float, list[float], float]:
        logits: list[float] = _leaf(outputs, "logits", (self._num_actions,)).tolist()
        top = max(logits)
        weights = [math.exp(logit - top) for logit in logits] if math.isfinite(top) else []
        total = sum(weights)
        if not total >= 1.0:  # also where a NaN hides behind a finite maximum
            raise SpecError(
                f"model output logits: expected one finite value or more and no NaN, got {logits}"
            )
        return logits, top, weights, total


class MultiCategorical:
    """Several independent actions at once, one of `num_actions[k]` each, by a list of `logits`."""

    def __init__(self, num_actions: Sequence[int]) -> None:
        self._heads = [Categorical(number) for number in num_actions]

    def sample(self, outputs: Nested, rng: random.Random) -> Decision:
        """Draw actions, int64 `[K]`; log_prob is the heads' sum."""
        return _joined([head.sample(part, rng) for head, part in self._parts(outputs)])

    def mode(self, outputs: Nested) -> Decision:
        """Return the most likely action of each head."""
        return _joined([head.mode(part) for head, part in self._parts(outputs)])

    def _parts(self, outputs: Nested) -> Iterator[tuple[Categorical, Nested]]:
        for head, logits in zip(self._heads, heads_of(outputs, len(self._heads)), strict=True):
            yield head, {"logits": logits}


class DiagonalGaussian:
    """A real vector, independent normal components by `mean` and `log_std`."""

    def __init__(self, size: int) -> None:
        self._size = size

    def sample(self, outputs: Nested, rng: random.Random) -> Decision:
        """Draw an action `[D]`, float32."""
        mean, log_std = self._parameters(outputs)
        noise = np.array([rng.gauss(0.0, 1.0) for _ in range(self._size)])
        action = (mean + np.exp(log_std) * noise).astype(np.float32)
        return self._within(outputs, action, self._log_prob(noise, log_std))

    def mode(self, outputs: Nested) -> Decision:
        """Return the mean, squashed where there are bounds."""
        mean, log_std = self._parameters(outputs)
        log_prob = self._log_prob(np.zeros(self._size), log_std)
        return self._within(outputs, mean.astype(np.float32), log_prob)

    def _within(self, outputs: Nested, action: npt.NDArray[Any], log_prob: float) -> Decision:
        if "low" not in outputs:
            return Decision(action, log_prob)
        low, high = self._finite(outputs, "low"), self._finite(outputs, "high")
        slope = float(tanh_log_slope(action, low, high).sum())
        return Decision(tanh_squash(action, low, high), log_prob - slope)

    def _parameters(self, outputs: Nested) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        log_std = self._finite(outputs, "log_std")
        held = np.minimum(np.maximum(log_std, -MAX_LOG_STD), MAX_LOG_STD)
        return self._finite(outputs, "mean"), held

    def _finite(self, outputs: Nested, name: str) -> npt.NDArray[Any]:
        leaf: npt.NDArray[Any] = _leaf(outputs, name, (self._size,)).astype(np.float64)
        if not math.isfinite(leaf.sum()):
            raise SpecError(f"model output {name}: expected finite values, got {leaf.tolist()}")
        return leaf

    def _log_prob(self, noise: npt.NDArray[Any], log_std: npt.NDArray[Any]) -> float:
        return float(-0.5 * (noise @ noise + self._size * _LOG_2PI) - log_std.sum())


class BoundedBeta:
    """A real vector between `low` and `high`, independent Beta components by `alpha` and `beta`.

    Chou et al. 2017, "Improving stochastic policy gradients in continuous control with deep
    reinforcement learning using the Beta distribution".
    """

    def __init__(self, size: int) -> None:
        self._size = size

    def sample(self, outputs: Nested, rng: random.Random) -> Decision:
        """Draw an action `[D]`, float32."""
        alpha, beta, low, high = self._parameters(outputs)
        drawn = np.array([rng.betavariate(a, b) for a, b in zip(alpha, beta, strict=True)])
        return self._decided(drawn, alpha, beta, low, high)

    def mode(self, outputs: Nested) -> Decision:
        """Return the most likely action."""
        alpha, beta, low, high = self._parameters(outputs)
        return self._decided(beta_mode(alpha, beta), alpha, beta, low, high)

    def _decided(
        self, drawn: _Numbers, alpha: _Numbers, beta: _Numbers, low: _Numbers, high: _Numbers
    ) -> Decision:
        action = between(drawn, low, high)
        return Decision(action, float(beta_log_density(action, alpha, beta, low, high).sum()))

    def _parameters(self, outputs: Nested) -> list[_Numbers]:
        leaves = {name: _leaf(outputs, name, (self._size,)) for name in BETA_OUTPUTS}
        for name, leaf in leaves.items():
            if not math.isfinite(leaf.sum()):
                raise SpecError(f"model output {name}: expected finite values, got {leaf.tolist()}")
        return held_beta(leaves)


class Mixed:
    """Several choices and a real vector at once, by a list of `logits` and the reals' outputs."""

    def __init__(self, num_actions: Sequence[int], reals: Decoder) -> None:
        self._choices = MultiCategorical(num_actions)
        self._reals = reals

    def sample(self, outputs: Nested, rng: random.Random) -> Decision:
        """Draw an action, float32 `[K + D]`; log_prob is the sum of both."""
        return self._both(self._choices.sample(outputs, rng), self._reals.sample(outputs, rng))

    def mode(self, outputs: Nested) -> Decision:
        """Return the most likely choices and the mean."""
        return self._both(self._choices.mode(outputs), self._reals.mode(outputs))

    def _both(self, choices: Decision, reals: Decision) -> Decision:
        action = np.concatenate([choices.action, reals.action], dtype=np.float32)
        return Decision(action, choices.log_prob + reals.log_prob)


def _joined(decisions: list[Decision]) -> Decision:
    action = np.array([decision.action for decision in decisions], np.int64)
    return Decision(action, sum(decision.log_prob for decision in decisions))


def heads_of(outputs: Nested, number: int) -> Sequence[Any]:
    """Return the logits of so many heads.

    Raises:
        SpecError: the outputs are not a list, or its length differs.
    """
    logits = outputs.get("logits") if isinstance(outputs, dict) else None
    if not isinstance(logits, list | tuple) or len(logits) != number:
        got = f"{len(logits)}" if isinstance(logits, list | tuple) else type(logits).__name__
        raise SpecError(f"model output logits: expected a list of {number} heads, got {got}")
    return logits


def _draw(weights: list[float], left: float) -> int:
    """Return the index in which a walk along the weights ends after `left`."""
    for index, weight in enumerate(weights):
        left -= weight
        if left < 0.0:
            return index
    # Rounding left a rest: the last action that is possible.
    return max(index for index, weight in enumerate(weights) if weight > 0.0)


def check_outputs(
    outputs: Nested,
    *,
    num_actions: int | None = None,
    state_size: int = 0,
    needs_value: bool = False,
) -> None:
    """Check that a policy's outputs can be decoded, before or at the first use.

    Args:
        outputs: One row of outputs, or the `ArraySpec` of each.
        num_actions: A of a discrete action space; None takes what the model has.
        state_size: S of a recurrent policy, which must return `state [S]`; 0 is none.
        needs_value: Whether the outputs must hold `value []` too, which recording needs.

    Raises:
        SpecError: a leaf does not fit; the message names it.
    """
    if not isinstance(outputs, dict) or not {"logits", "mean", "alpha"} & set(outputs):
        names = sorted(outputs) if isinstance(outputs, dict) else type(outputs).__name__
        raise SpecError(
            f"model output: expected logits, mean and log_std, or alpha and beta, got {names}"
        )
    if num_actions is None and isinstance(outputs.get("logits"), list | tuple):
        for logits in outputs["logits"]:
            _leaf({"logits": logits}, "logits", (None,))
    elif num_actions is not None or "logits" in outputs:
        _leaf(outputs, "logits", (num_actions,))
    if "mean" in outputs:
        shape = _leaf(outputs, "mean", (None,)).shape
        for name in ("log_std", "low", "high") if "low" in outputs else ("log_std",):
            _leaf(outputs, name, shape)
    elif "alpha" in outputs:
        shape = _leaf(outputs, "alpha", (None,)).shape
        for name in BETA_OUTPUTS:
            _leaf(outputs, name, shape)
    if state_size:
        _leaf(outputs, "state", (state_size,))
    if needs_value:
        _leaf(outputs, "value", ())


def decoder_for(outputs: Nested) -> Decoder:
    """Return the decoder that a policy's outputs call for, by their names and sizes.

    Raises:
        SpecError: there are neither `logits [A]`, nor a list of them, nor `mean [D]` and
            `log_std [D]`, nor `alpha`, `beta`, `low` and `high [D]`.
    """
    check_outputs(outputs)
    if isinstance(outputs.get("logits"), list | tuple):
        sizes = [logits.shape[0] for logits in outputs["logits"]]
        has_reals = "mean" in outputs or "alpha" in outputs
        return Mixed(sizes, _reals_decoder(outputs)) if has_reals else MultiCategorical(sizes)
    if "logits" in outputs:
        return Categorical(outputs["logits"].shape[0])
    return _reals_decoder(outputs)


def _reals_decoder(outputs: Nested) -> Decoder:
    if "mean" in outputs:
        return DiagonalGaussian(outputs["mean"].shape[0])
    return BoundedBeta(outputs["alpha"].shape[0])


def _leaf(outputs: Nested, name: str, shape: tuple[int | None, ...]) -> Any:
    """Return a leaf of floats; None in `shape` stands for any size."""
    leaf = outputs.get(name) if isinstance(outputs, dict) else None
    dtype, got = getattr(leaf, "dtype", None), getattr(leaf, "shape", ())
    if dtype is None or dtype.kind != "f" or not _fits(got, shape):
        sizes = ", ".join("any" if size is None else str(size) for size in shape)
        wanted = f"({sizes},)" if len(shape) == 1 else f"({sizes})"
        has = f"{dtype} {got}" if dtype is not None else "nothing"
        raise SpecError(f"model output {name}: expected float32 {wanted}, got {has}")
    return leaf


def _fits(got: tuple[int, ...], shape: tuple[int | None, ...]) -> bool:
    return got == shape or (
        len(got) == len(shape) and all(w in (None, g) for g, w in zip(got, shape, strict=True))
    )


def tanh_squash(unbounded: _Numbers, low: _Numbers, high: _Numbers) -> _Numbers:
    """Return low + (high − low) (tanh(u) + 1) / 2, float32, never outside the bounds.

    Haarnoja et al. 2018, "Soft actor-critic algorithms and applications", appendix C.
    """
    action = low + (high - low) * 0.5 * (np.tanh(unbounded) + 1.0)
    return np.clip(action, low, high).astype(np.float32)


def tanh_log_slope(unbounded: _Numbers, low: _Numbers, high: _Numbers) -> _Numbers:
    """Return log |d squash / du|, by which squashing lowers a log density; no overflow at far u."""
    # log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u))
    slope = 2.0 * (math.log(2.0) - unbounded - np.logaddexp(0.0, -2.0 * unbounded))
    return slope + np.log((high - low) * 0.5)


def held_beta(outputs: Nested) -> list[_Numbers]:
    """Return `BETA_OUTPUTS` in float64, alpha and beta held within their bounds."""
    alpha, beta, low, high = (np.asarray(outputs[name], np.float64) for name in BETA_OUTPUTS)
    return [alpha.clip(*_BETA_HELD), beta.clip(*_BETA_HELD), low, high]


def between(unit: _Numbers, low: _Numbers, high: _Numbers) -> _Numbers:
    """Return low + (high − low) x, float32, never outside the bounds."""
    action: _Numbers = np.clip(low + (high - low) * unit, low, high).astype(np.float32)
    return action


def beta_log_density(
    action: _Numbers, alpha: _Numbers, beta: _Numbers, low: _Numbers, high: _Numbers
) -> _Numbers:
    """Return the log density of each number of float32 actions between the bounds.

    An action at a bound counts as the first number inside, as in `bray_algo.distributions.beta`.
    """
    inside = np.finfo(np.float32)
    unit = np.clip((action - low) / (high - low), inside.tiny, 1.0 - inside.eps)
    normaliser = _log_gamma(alpha) + _log_gamma(beta) - _log_gamma(alpha + beta)
    density = (alpha - 1.0) * np.log(unit) + (beta - 1.0) * np.log1p(-unit) - normaliser
    log_density: _Numbers = density - np.log(high - low)
    return log_density


def beta_mode(alpha: _Numbers, beta: _Numbers) -> _Numbers:
    """Return the most likely numbers: where neither parameter is above 1, the mean."""
    is_peaked = (alpha > 1.0) & (beta > 1.0)
    peak = (alpha - 1.0) / np.where(is_peaked, alpha + beta - 2.0, 1.0)
    flat = np.where((alpha <= 1.0) & (beta > 1.0), 0.0, alpha / (alpha + beta))
    flat = np.where((alpha > 1.0) & (beta <= 1.0), 1.0, flat)
    mode: _Numbers = np.where(is_peaked, peak, flat)
    return mode


def _log_gamma(numbers: _Numbers) -> _Numbers:
    """Return log Γ of each number: numpy has none."""
    return np.reshape([math.lgamma(number) for number in numbers.flat], numbers.shape)
