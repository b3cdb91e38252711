"""Choices given earlier ones: what players draw has the probability that training computes."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from bray_actor.policy.autoregressive import Autoregressive
from bray_actor.policy.batch_decoder import batch_decoder
from bray_actor.policy.decoder import check_outputs, decoder_for
from bray_core.action_vector import ActionVector
from bray_core.errors import SpecError
from bray_core.spaces import parse

torch = pytest.importorskip("torch")
distribution = pytest.importorskip("bray_algo.distributions.outputs")

SIZES, ORDER, N = (3, 2, 4), (2, 0, 1), 6
KINDS = ["choices", "gaussian", "squashed"]


def outputs_of(n: int, kind: str = "choices", seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    num_values, num_reals = sum(SIZES), 0 if kind == "choices" else 2
    rank = np.argsort(ORDER)[np.repeat(np.arange(3), SIZES)]
    later = rank[:, None] < np.concatenate([rank, np.full(num_reals, 3)])
    table = 2 * rng.normal(size=(n, num_values, num_values + num_reals)) * later
    table[..., num_values:] *= 0.1  # far out, tanh has no digits left
    made: dict[str, Any] = {
        "logits": [rng.normal(size=(n, size)).astype(np.float32) for size in SIZES],
        "conditional": table.astype(np.float32),
        "order": np.tile(np.array(ORDER, np.float32), (n, 1)),
    }
    if num_reals:
        made["mean"] = rng.normal(size=(n, 2)).astype(np.float32)
        made["log_std"] = (0.3 * rng.normal(size=(n, 2)) - 0.5).astype(np.float32)
    if kind == "squashed":
        made["low"], made["high"] = np.full((n, 2), -2, np.float32), np.full((n, 2), 3, np.float32)
    return made


def row(outputs: dict[str, Any], i: int) -> dict[str, Any]:
    return {
        name: [head[i] for head in leaf] if isinstance(leaf, list) else leaf[i]
        for name, leaf in outputs.items()
    }


def tensors(outputs: dict[str, Any]) -> dict[str, Any]:
    return {
        name: [torch.from_numpy(h) for h in leaf] if isinstance(leaf, list) else torch.tensor(leaf)
        for name, leaf in outputs.items()
    }


def space_of(kind: str) -> ActionVector:
    reals = {} if kind == "choices" else {"z": {"shape": [2], "low": -2, "high": 3}}
    choices = {name: {"discrete": size} for name, size in zip("abc", SIZES, strict=True)}
    return ActionVector(parse({**choices, **reals}))


@pytest.mark.parametrize("kind", KINDS)
def test_draws_have_the_probability_that_training_computes(kind: str) -> None:
    outputs = outputs_of(N, kind)
    decoder, rng = batch_decoder(space_of(kind), N), np.random.default_rng(1)
    for _ in range(20):
        action, log_prob = decoder.sample(outputs, rng)
        assert action.shape == (N, 3 if kind == "choices" else 5)
        want = distribution.log_prob(tensors(outputs), torch.from_numpy(action)).numpy()
        np.testing.assert_allclose(log_prob, want, atol=2e-4)
    ones = random.Random(1)
    for i in range(N):
        one = decoder_for(row(outputs, i))
        assert isinstance(one, Autoregressive)
        for decide in (lambda part: one.sample(part, ones), one.mode):  # noqa: B023
            drawn, log_p = decide(row(outputs, i))
            assert drawn.dtype == (np.int64 if kind == "choices" else np.float32)
            got = distribution.log_prob(tensors(row(outputs, i)), torch.from_numpy(drawn))
            assert log_p == pytest.approx(got.item(), abs=2e-4)
        want = distribution.mode(tensors(row(outputs, i))).numpy()
        np.testing.assert_allclose(one.mode(row(outputs, i)).action, want, atol=1e-5)


def test_draws_are_as_frequent_as_they_are_likely() -> None:
    n = 20_000
    one = outputs_of(1)
    outputs = {
        name: [np.repeat(h, n, 0) for h in leaf]
        if isinstance(leaf, list)
        else np.repeat(leaf, n, 0)
        for name, leaf in one.items()
    }
    every = np.stack(np.meshgrid(*map(np.arange, SIZES), indexing="ij"), -1).reshape(-1, 3)
    p = np.exp([distribution.log_prob(tensors(row(one, 0)), torch.tensor(a)).item() for a in every])
    batch, _ = batch_decoder(space_of("choices"), n).sample(outputs, np.random.default_rng(2))
    rng, decoder = random.Random(2), decoder_for(row(one, 0))
    rows = np.stack([decoder.sample(row(one, 0), rng).action for _ in range(n // 4)])
    for drawn in (batch, rows):
        share = np.bincount(np.ravel_multi_index(drawn.T, SIZES), minlength=len(p)) / len(drawn)
        assert (np.abs(share - p) < 5 * np.sqrt(p * (1 - p) / len(drawn)) + 1e-9).all()


def test_values_that_are_not_allowed_are_never_drawn() -> None:
    outputs = outputs_of(N)
    outputs["logits"][0][:, 1:] = np.finfo(np.float32).min
    decoder, rng = batch_decoder(space_of("choices"), N), np.random.default_rng(3)
    for _ in range(50):
        action, log_prob = decoder.sample(outputs, rng)
        assert (action[:, 0] == 0).all()
        assert np.isfinite(log_prob).all()
    assert decoder_for(row(outputs, 0)).sample(row(outputs, 0), random.Random(0)).action[0] == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"order": None}, r"model output order: expected float32 \(3,\), got nothing"),
        ({"conditional": np.zeros((9, 8), np.float32)}, r"conditional: expected float32 \(9, 9\)"),
        ({"logits": np.zeros(3, np.float32)}, "conditional: expected a list of logits beside it"),
        (
            dict.fromkeys(("alpha", "beta", "low", "high"), np.ones(1, np.float32)),
            "conditional: expected a list of logits beside it, and no reals or mean",
        ),
    ],
)
def test_outputs_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    outputs = {**row(outputs_of(1), 0), **changes}
    outputs = {name: leaf for name, leaf in outputs.items() if leaf is not None}
    with pytest.raises(SpecError, match=message):
        check_outputs(outputs)


def test_an_order_is_one_of_all_choices_and_the_same_in_all_rows() -> None:
    outputs = outputs_of(2)
    twice = np.array([0, 0, 1], np.float32)
    with pytest.raises(SpecError, match="order: expected each of 0 to 2 once, got"):
        decoder_for(row(outputs, 0)).mode({**row(outputs, 0), "order": twice})
    decoder, rng = batch_decoder(space_of("choices"), 2), np.random.default_rng(0)
    with pytest.raises(SpecError, match="order: expected each of 0 to 2 once, got"):
        decoder.sample({**outputs, "order": np.stack([twice, twice])}, rng)
    mixed = np.array([[0, 1, 2], [2, 1, 0]], np.float32)
    with pytest.raises(SpecError, match="order: expected the same in all rows, got"):
        decoder.sample({**outputs, "order": mixed}, rng)
