"""From a policy's outputs to an action, in numpy and plain Python: one row at a time.

Discrete: outputs `{"logits": [A], "value": []}`; of several actions at once (MultiDiscrete) the
logits are a list of heads `[A_k]`. Continuous: `{"mean": [D], "log_std": [D], "value": []}`, a
diagonal Gaussian; with `{"low": [D], "high": [D]}` too it is squashed between these by tanh, and
with `pink` its draws follow those before (`pink_noise`): a decoder is of one episode.
`{"alpha": [D], "beta": [D], "low": [D], "high": [D]}` is a Beta distribution between them. Choices
and reals at once have both, a list of `logits` and what describes the reals: the action is one
array of both (`bray_core.action_vector`). With `conditional` and `order` too each choice depends on
those before (`autoregressive`).

An action that must not be taken has a logit far below the others: masking is the module's part.
What is drawn and its probability are those of `bray_algo`: the least finite logit, as its mask
gives, or −inf is no chance, and a `log_std` is held within −20 and 20.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bray_actor.policy.autoregressive import Autoregressive
from bray_actor.policy.decision import Decision, Decoder, all_of, both_of
from bray_actor.policy.densities import (
    BETA_OUTPUTS,
    beta_log_density,
    beta_mode,
    between,
    held_beta,
    tanh_log_slope,
    tanh_squash,
)
from bray_actor.policy.named_outputs import heads_of, is_autoregressive, leaf_of
from bray_actor.policy.pink_noise import NUM_OCTAVES, PinkNoise, is_pink
from bray_core.errors import SpecError
from bray_core.nested import Nested

_LOG_2PI = math.log(2 * math.pi)
MAX_LOG_STD = 20.0
"""Bound of a log standard deviation, on both sides: that of `bray_algo.distributions.gaussian`."""

_Numbers = npt.NDArray[Any]


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
        logits: list[float] = leaf_of(outputs, "logits", (self._num_actions,)).tolist()
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
        return all_of([head.sample(part, rng) for head, part in self._parts(outputs)])

    def mode(self, outputs: Nested) -> Decision:
        """Return the most likely action of each head."""
        return all_of([head.mode(part) for head, part in self._parts(outputs)])

    def _parts(self, outputs: Nested) -> Iterator[tuple[Categorical, Nested]]:
        for head, logits in zip(self._heads, heads_of(outputs, len(self._heads)), strict=True):
            yield head, {"logits": logits}


class DiagonalGaussian:
    """A real vector, independent normal components by `mean` and `log_std`."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._pink = PinkNoise()

    def sample(self, outputs: Nested, rng: random.Random) -> Decision:
        """Draw an action `[D]`, float32; its noise is pink where the outputs say so."""
        mean, log_std = self._parameters(outputs)
        noise = self._noise(is_pink(outputs), rng)
        action = (mean + np.exp(log_std) * noise).astype(np.float32)
        return self._within(outputs, action, self._log_prob(noise, log_std))

    def mode(self, outputs: Nested) -> Decision:
        """Return the mean, squashed where there are bounds."""
        mean, log_std = self._parameters(outputs)
        log_prob = self._log_prob(np.zeros(self._size), log_std)
        return self._within(outputs, mean.astype(np.float32), log_prob)

    def _noise(self, pink: bool, rng: random.Random) -> _Numbers:
        if not pink:
            return np.array([rng.gauss(0.0, 1.0) for _ in range(self._size)])
        fresh = [rng.gauss(0.0, 1.0) for _ in range(self._size * NUM_OCTAVES)]
        return self._pink.draw(np.array(fresh).reshape(self._size, NUM_OCTAVES))

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
        leaf: npt.NDArray[Any] = leaf_of(outputs, name, (self._size,)).astype(np.float64)
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
        leaves = {name: leaf_of(outputs, name, (self._size,)) for name in BETA_OUTPUTS}
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
        return both_of(self._choices.sample(outputs, rng), self._reals.sample(outputs, rng))

    def mode(self, outputs: Nested) -> Decision:
        """Return the most likely choices and the mean."""
        return both_of(self._choices.mode(outputs), self._reals.mode(outputs))


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
            leaf_of({"logits": logits}, "logits", (None,))
    elif num_actions is not None or "logits" in outputs:
        leaf_of(outputs, "logits", (num_actions,))
    if "mean" in outputs:
        shape = leaf_of(outputs, "mean", (None,)).shape
        for name in ("log_std", "low", "high") if "low" in outputs else ("log_std",):
            leaf_of(outputs, name, shape)
        if is_pink(outputs):
            leaf_of(outputs, "pink", ())
    elif "alpha" in outputs:
        shape = leaf_of(outputs, "alpha", (None,)).shape
        for name in BETA_OUTPUTS:
            leaf_of(outputs, name, shape)
    if "conditional" in outputs:
        _check_conditional(outputs)
    if state_size:
        leaf_of(outputs, "state", (state_size,))
    if needs_value:
        leaf_of(outputs, "value", ())


def decoder_for(outputs: Nested) -> Decoder:
    """Return the decoder that a policy's outputs call for, by their names and sizes.

    Raises:
        SpecError: there are neither `logits [A]`, nor a list of them, nor `mean [D]` and
            `log_std [D]`, nor `alpha`, `beta`, `low` and `high [D]`.
    """
    check_outputs(outputs)
    if isinstance(outputs.get("logits"), list | tuple):
        sizes = [logits.shape[0] for logits in outputs["logits"]]
        if is_autoregressive(outputs):
            return _in_order(outputs, sizes)
        has_reals = "mean" in outputs or "alpha" in outputs
        return Mixed(sizes, _reals_decoder(outputs)) if has_reals else MultiCategorical(sizes)
    if "logits" in outputs:
        return Categorical(outputs["logits"].shape[0])
    return _reals_decoder(outputs)


def _check_conditional(outputs: Nested) -> None:
    """Refuse choices in an order whose tables do not fit."""
    if not isinstance(outputs.get("logits"), list | tuple) or "alpha" in outputs:
        raise SpecError(
            "model output conditional: expected a list of logits beside it, and no reals or mean "
            f"and log_std, got {sorted(outputs)}"
        )
    leaf_of(outputs, "order", (len(outputs["logits"]),))
    num_values = sum(logits.shape[0] for logits in outputs["logits"])
    num_reals = outputs["mean"].shape[0] if "mean" in outputs else 0
    leaf_of(outputs, "conditional", (num_values, num_values + num_reals))


def _in_order(outputs: Nested, sizes: Sequence[int]) -> Decoder:
    choices = [Categorical(size) for size in sizes]
    if "mean" not in outputs:
        return Autoregressive(sizes, choices, None, 0)
    return Autoregressive(sizes, choices, _reals_decoder(outputs), outputs["mean"].shape[0])


def _reals_decoder(outputs: Nested) -> Decoder:
    if "mean" in outputs:
        return DiagonalGaussian(outputs["mean"].shape[0])
    return BoundedBeta(outputs["alpha"].shape[0])
