from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest

from bray_actor.decoder import Categorical, DiagonalGaussian, decoder_for
from bray_core.errors import SpecError


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
    for values in ((math.nan, 0.0), (-math.inf, -math.inf)):
        with pytest.raises(SpecError, match="expected one finite value or more"):
            Categorical(2).sample(logits(*values), rng)


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
    with pytest.raises(SpecError, match=r"expected logits, or mean and log_std, got \['q'\]"):
        decoder_for({"q": np.zeros(2)})
    assert isinstance(decoder_for(logits(0, 0)), Categorical)
    gaussian = {"mean": np.zeros(2), "log_std": np.zeros(2)}
    assert isinstance(decoder_for(gaussian), DiagonalGaussian)
