"""Beta distributions between bounds: moments of the draws, densities by the formula."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest

from bray_actor.policy.batch_decoder import BatchBeta, batch_decoder
from bray_actor.policy.decoder import BoundedBeta, check_outputs, decoder_for
from bray_core.action_vector import ActionVector
from bray_core.errors import SpecError
from bray_core.spaces import parse

ALPHA, BETA = np.array([2.0, 5.0]), np.array([3.0, 1.5])
LOW, HIGH = np.array([-1.0, 10.0]), np.array([1.0, 14.0])


def outputs(n: int | None = None) -> dict[str, Any]:
    named = {"alpha": ALPHA, "beta": BETA, "low": LOW, "high": HIGH}
    made = {name: leaf.astype(np.float32) for name, leaf in named.items()}
    return made if n is None else {name: np.tile(leaf, (n, 1)) for name, leaf in made.items()}


def density(action: Any) -> float:
    """Return log p by the formula, number by number."""
    total = 0.0
    for x, a, b, low, high in zip(action, ALPHA, BETA, LOW, HIGH, strict=True):
        unit = (float(x) - low) / (high - low)
        constant = math.gamma(a + b) / math.gamma(a) / math.gamma(b)
        total += math.log(constant * unit ** (a - 1) * (1 - unit) ** (b - 1) / (high - low))
    return total


def check_moments(actions: np.ndarray) -> None:
    unit = (actions - LOW) / (HIGH - LOW)
    mean = ALPHA / (ALPHA + BETA)
    variance = mean * (1 - mean) / (ALPHA + BETA + 1)
    np.testing.assert_allclose(unit.mean(0), mean, atol=0.02)
    np.testing.assert_allclose(unit.var(0), variance, atol=0.01)


def test_batches() -> None:
    actions, log_probs = BatchBeta(4_000, 2).sample(outputs(4_000), np.random.default_rng(0))
    assert actions.dtype == np.float32
    check_moments(actions)
    np.testing.assert_allclose(log_probs[:50], [density(a) for a in actions[:50]], atol=1e-3)


def test_single_rows() -> None:
    decoder, rng = BoundedBeta(2), random.Random(0)
    drawn = [decoder.sample(outputs(), rng) for _ in range(4_000)]
    check_moments(np.stack([one.action for one in drawn]))
    for one in drawn[:50]:
        assert one.log_prob == pytest.approx(density(one.action), abs=1e-3)
    again = BoundedBeta(2).sample(outputs(), random.Random(0))
    assert (again.action == drawn[0].action).all(), "drawn from the session's generator alone"


def test_the_mode() -> None:
    mode = (ALPHA - 1) / (ALPHA + BETA - 2)
    decided = BoundedBeta(2).mode(outputs())
    np.testing.assert_allclose(decided.action, LOW + (HIGH - LOW) * mode, rtol=1e-6)
    ends = {
        "alpha": np.array([1.0, 2.0, 1.0], np.float32),
        "beta": np.array([2.0, 1.0, 1.0], np.float32),
        "low": np.zeros(3, np.float32),
        "high": np.ones(3, np.float32),
    }
    assert BoundedBeta(3).mode(ends).action.tolist() == [0.0, 1.0, 0.5]
    assert math.isfinite(BoundedBeta(3).mode(ends).log_prob)


def test_outputs_say_which_decoder() -> None:
    assert isinstance(decoder_for(outputs()), BoundedBeta)
    reals = batch_decoder(ActionVector(parse({"shape": [2], "low": 0, "high": 1})), 3)
    actions, _ = reals.sample(outputs(3), np.random.default_rng(0))
    assert ((actions >= LOW) & (actions <= HIGH)).all()


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(SpecError, match=r"model output beta: expected float32 \(2,\), got nothing"):
        check_outputs({"alpha": ALPHA.astype(np.float32)})
    bad = outputs() | {"alpha": np.array([np.nan, 1.0], np.float32)}
    with pytest.raises(SpecError, match="model output alpha: expected finite values"):
        BoundedBeta(2).sample(bad, random.Random(0))
    with pytest.raises(SpecError, match="model output alpha: expected finite values"):
        BatchBeta(2, 2).sample(
            {name: np.stack([leaf, leaf]) for name, leaf in bad.items()}, np.random.default_rng(0)
        )
