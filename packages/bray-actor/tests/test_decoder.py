from __future__ import annotations

import math
import random
import re
from typing import Any

import numpy as np
import pytest

from bray_actor.policy.decoder import Categorical, DiagonalGaussian, check_outputs, decoder_for
from bray_core.errors import SpecError
from bray_core.nested import ArraySpec


def logits(*values: float) -> dict[str, Any]:
    return {"logits": np.array(values, np.float32), "value": np.float32(0)}


def test_samples_follow_the_softmax() -> None:
    outputs, rng = logits(0.0, 1.0, 2.0), random.Random(0)
    decisions = [Categorical(3).sample(outputs, rng) for _ in range(20_000)]
    p = np.exp([0, 1, 2]) / np.exp([0, 1, 2]).sum()
    counts = np.bincount([d.action for d in decisions], minlength=3)
    assert (np.abs(counts - 20_000 * p) < 5 * np.sqrt(20_000 * p * (1 - p))).all()
    for decision in decisions[:10]:
        assert decision.log_prob == pytest.approx(math.log(p[decision.action]), abs=1e-6)


def test_mode_is_the_largest_logit() -> None:
    decision = Categorical(3).mode(logits(0.0, 3.0, 3.0))
    assert decision.action == 1
    assert decision.log_prob == pytest.approx(math.log(1 / (2 + math.exp(-3))), abs=1e-6)


def test_extremes_are_safe() -> None:
    rng = random.Random(0)
    for outputs in (logits(-math.inf, 0.0), logits(-1e30, 1e30), logits(-1e38, 3e38)):
        for _ in range(100):
            decision = Categorical(2).sample(outputs, rng)
            assert decision.action == 1
            assert decision.log_prob == 0.0
    for values in ((math.nan, 0.0), (0.0, math.nan), (-math.inf, -math.inf), (0.0, math.inf)):
        with pytest.raises(SpecError, match="expected one finite value or more"):
            Categorical(2).sample(logits(*values), rng)
        with pytest.raises(SpecError, match="and no NaN, got"):
            Categorical(2).mode(logits(*values))


def test_heads() -> None:
    outputs = {"logits": [logits(0.0, 1.0)["logits"], logits(0.0, -1e9, 2.0)["logits"]]}
    decoder, rng = decoder_for(outputs), random.Random(0)
    drawn = [decoder.sample(outputs, rng) for _ in range(20_000)]
    p = np.outer(_softmax([0, 1]), _softmax([0, -1e9, 2])).ravel()
    pairs = [int(d.action[0] * 3 + d.action[1]) for d in drawn]
    counts = np.bincount(pairs, minlength=6)
    assert (np.abs(counts - 20_000 * p) <= 5 * np.sqrt(20_000 * p * (1 - p))).all()
    for pair, decision in zip(pairs[:20], drawn, strict=False):
        assert decision.log_prob == pytest.approx(math.log(p[pair]), abs=1e-6)
    best = decoder.mode(outputs)
    assert best.action.tolist() == [1, 2]
    assert best.log_prob == pytest.approx(math.log(p.max()), abs=1e-6)
    with pytest.raises(SpecError, match="logits: expected a list of 2 heads, got 1"):
        decoder.mode({"logits": outputs["logits"][:1]})
    with pytest.raises(SpecError, match=r"logits: expected float32 \(any,\), got float32 \(\)"):
        decoder_for({"logits": [np.zeros(2, np.float32), np.float32(0)]})


def _softmax(values: list[float]) -> Any:
    weights = np.exp(np.array(values) - max(values))
    return weights / weights.sum()


def test_the_gaussian() -> None:
    outputs = {
        "mean": np.array([1.0, -2.0], np.float32),
        "log_std": np.array([0.0, -1.0], np.float32),
    }
    rng, decoder = random.Random(0), DiagonalGaussian(2)
    drawn = np.array([decoder.sample(outputs, rng).action for _ in range(5000)])
    std = np.exp([0.0, -1.0])
    assert (np.abs(drawn.mean(0) - [1, -2]) < 5 * std / math.sqrt(5000)).all()
    assert (np.abs(drawn.std(0) - std) < 5 * std / math.sqrt(2 * 5000)).all()
    decision = decoder.sample(outputs, rng)
    z = (decision.action - outputs["mean"]) / std
    want = sum(-0.5 * z**2 - np.log(std) - 0.5 * math.log(2 * math.pi))
    assert decision.log_prob == pytest.approx(want, abs=1e-5)
    assert decoder.mode(outputs).action.tolist() == [1, -2]


def test_outputs_that_do_not_fit_are_named() -> None:
    with pytest.raises(SpecError, match=r"logits: expected float32 \(2,\), got float32 \(3,\)"):
        Categorical(2).mode(logits(0, 0, 0))
    with pytest.raises(SpecError, match=r"logits: expected float32 \(2,\), got nothing"):
        Categorical(2).mode({"value": np.float32(0)})
    with pytest.raises(
        SpecError, match=r"expected logits, mean and log_std, or alpha and beta, got \['q'\]"
    ):
        decoder_for({"q": np.zeros(2)})
    assert isinstance(decoder_for(logits(0, 0)), Categorical)
    gaussian = {"mean": np.zeros(2), "log_std": np.zeros(2)}
    assert isinstance(decoder_for(gaussian), DiagonalGaussian)


def test_a_gaussian_that_is_not_finite_is_named() -> None:
    good, bad = np.zeros(2, np.float32), np.array([0, math.nan], np.float32)
    rng = random.Random(0)
    with pytest.raises(SpecError, match=r"model output mean: expected finite values, got \[0.0, n"):
        DiagonalGaussian(2).sample({"mean": bad, "log_std": good}, rng)
    with pytest.raises(SpecError, match="model output log_std: expected finite values"):
        DiagonalGaussian(2).mode({"mean": good, "log_std": -np.inf * np.ones(2)})


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({"logits": (3,), "value": ()}, r"logits: expected float32 (2,), got float32 (3,)"),
        ({"logits": (), "value": ()}, r"logits: expected float32 (2,), got float32 ()"),
        ({"mean": (2,), "log_std": (2,)}, r"logits: expected float32 (2,), got nothing"),
        ({"logits": (2,)}, r"value: expected float32 (), got nothing"),
        ({"logits": (2,), "value": (1,)}, r"value: expected float32 (), got float32 (1,)"),
    ],
)
def test_a_signature_can_be_checked_beforehand(outputs: Any, message: str) -> None:
    spec = {name: ArraySpec(np.dtype("f4"), shape) for name, shape in outputs.items()}
    with pytest.raises(SpecError, match=re.escape(f"model output {message}")):
        check_outputs(spec, num_actions=2, needs_value=True)


def test_signatures_that_fit() -> None:
    number = ArraySpec(np.dtype("f4"), ())
    pair = ArraySpec(np.dtype("f4"), (2,))
    check_outputs({"logits": pair, "value": number}, num_actions=2, needs_value=True)
    check_outputs({"mean": pair, "log_std": pair})
    with pytest.raises(SpecError, match=r"log_std: expected float32 \(2,\), got float32 \(\)"):
        check_outputs({"mean": pair, "log_std": number})
    with pytest.raises(SpecError, match=r"logits: expected float32 \(any,\), got int64 \(2,\)"):
        decoder_for({"logits": np.zeros(2, np.int64)})
