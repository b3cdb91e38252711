"""Choices and reals at once: what players draw has the probability that training computes."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from bray_actor.policy.batch_decoder import BatchMixed, batch_decoder
from bray_actor.policy.decoder import Mixed, decoder_for
from bray_core.action_vector import ActionVector
from bray_core.errors import SpecError
from bray_core.spaces import parse

torch = pytest.importorskip("torch")
distribution = pytest.importorskip("bray_algo.distributions.outputs")

SIZES, D, N = (3, 2), 2, 5


def outputs_of(n: int, *, is_squashed: bool = False, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    made: dict[str, Any] = {
        "logits": [rng.normal(size=(n, size)).astype(np.float32) for size in SIZES],
        "mean": rng.normal(size=(n, D)).astype(np.float32),
        "log_std": (0.3 * rng.normal(size=(n, D)) - 0.5).astype(np.float32),
    }
    if is_squashed:
        made["low"] = np.full((n, D), -2, np.float32)
        made["high"] = np.tile(np.array([1.0, 3.0], np.float32), (n, 1))
    return made


def row(outputs: dict[str, Any], i: int) -> dict[str, Any]:
    return {
        name: [head[i] for head in leaf] if isinstance(leaf, list) else leaf[i]
        for name, leaf in outputs.items()
    }


def trained(outputs: dict[str, Any], action: Any) -> Any:
    """The log probability that training computes."""
    tensors = {
        name: [torch.from_numpy(h) for h in leaf] if isinstance(leaf, list) else torch.tensor(leaf)
        for name, leaf in outputs.items()
    }
    return distribution.log_prob(tensors, torch.from_numpy(np.asarray(action))).numpy()


@pytest.mark.parametrize("is_squashed", [False, True])
def test_a_batch_is_drawn_with_the_probability_that_training_computes(is_squashed: bool) -> None:
    outputs, rng = outputs_of(N, is_squashed=is_squashed), np.random.default_rng(1)
    decoder = BatchMixed(N, SIZES, D)
    for _ in range(20):
        action, log_prob = decoder.sample(outputs, rng)
        assert action.dtype == np.float32
        assert action.shape == (N, 2 + D)
        assert (action[:, :2] == np.floor(action[:, :2])).all()
        assert (action[:, :2] < SIZES).all()
        np.testing.assert_allclose(log_prob, trained(outputs, action), atol=1e-4)
        if is_squashed:
            assert (action[:, 2:] >= outputs["low"]).all()
            assert (action[:, 2:] <= outputs["high"]).all()


@pytest.mark.parametrize("is_squashed", [False, True])
def test_a_row_is_drawn_with_the_probability_that_training_computes(is_squashed: bool) -> None:
    outputs, rng = outputs_of(N, is_squashed=is_squashed), random.Random(1)
    for i in range(N):
        decoder = decoder_for(row(outputs, i))
        assert isinstance(decoder, Mixed)
        for decide in (lambda one: decoder.sample(one, rng), decoder.mode):  # noqa: B023
            action, log_prob = decide(row(outputs, i))
            assert action.dtype == np.float32
            assert action.shape == (2 + D,)
            assert log_prob == pytest.approx(float(trained(row(outputs, i), action)), abs=1e-4)


def test_the_mode_is_that_of_training() -> None:
    for is_squashed in (False, True):
        outputs = row(outputs_of(1, is_squashed=is_squashed, seed=3), 0)
        tensors = {
            name: [torch.tensor(h) for h in leaf] if isinstance(leaf, list) else torch.tensor(leaf)
            for name, leaf in outputs.items()
        }
        got = decoder_for(outputs).mode(outputs).action
        np.testing.assert_allclose(got, distribution.mode(tensors).numpy(), atol=1e-6)


def test_draws_follow_both_distributions_and_are_independent() -> None:
    n = 20_000
    outputs = {
        name: [np.tile(h[:1], (n, 1)) for h in leaf]
        if isinstance(leaf, list)
        else np.tile(leaf[:1], (n, 1))
        for name, leaf in outputs_of(1, seed=4).items()
    }
    action, _ = BatchMixed(n, SIZES, D).sample(outputs, np.random.default_rng(2))
    for k, logits in enumerate(outputs["logits"]):
        p = np.exp(logits[0]) / np.exp(logits[0]).sum()
        share = np.bincount(action[:, k].astype(int), minlength=len(p)) / n
        assert (np.abs(share - p) < 5 * np.sqrt(p * (1 - p) / n)).all()
    std = np.exp(outputs["log_std"][0])
    assert (np.abs(action[:, 2:].mean(0) - outputs["mean"][0]) < 5 * std / np.sqrt(n)).all()
    np.testing.assert_allclose(action[:, 2:].std(0), std, rtol=0.05)
    together = np.corrcoef(action.T)
    assert (np.abs(together[~np.eye(4, dtype=bool)]) < 5 / np.sqrt(n)).all()


def test_the_decoder_of_a_space() -> None:
    space = parse({"aim": {"shape": [2]}, "go": {"discrete": 3}, "fire": {"multi_binary": 1}})
    decoder = batch_decoder(ActionVector(space), N)
    outputs = outputs_of(N)
    outputs["logits"] = outputs["logits"][::-1]  # `fire` comes before `go`
    action, _ = decoder.sample(outputs, np.random.default_rng(0))
    assert action.shape == (N, 4)
    with pytest.raises(SpecError, match="logits: expected a list of 2 heads, got 1"):
        decoder.sample({**outputs, "logits": outputs["logits"][:1]}, np.random.default_rng(0))
    with pytest.raises(SpecError, match="model output mean: expected float32"):
        decoder.sample({**outputs, "mean": outputs["mean"][:, :1]}, np.random.default_rng(0))
    with pytest.raises(SpecError, match="model output log_std: expected finite values"):
        decoder.sample(
            {**outputs, "log_std": outputs["log_std"] * np.nan}, np.random.default_rng(0)
        )
