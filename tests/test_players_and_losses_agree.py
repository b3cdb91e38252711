"""What players draw, in numpy, has the probability that losses give it, in torch."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from bray_actor.policy.batch_decoder import (
    BatchBeta,
    BatchCategorical,
    BatchDiagonalGaussian,
    BatchMixed,
)
from bray_actor.policy.decoder import BoundedBeta, Categorical, DiagonalGaussian, decoder_for
from bray_algo.distributions import categorical, gaussian, outputs

LEGAL = torch.tensor([[True, False, True, True], [False, False, True, False]] * 8)


@pytest.mark.parametrize("shift", [0.0, -1e9, -1e30, 1e30])
@pytest.mark.parametrize("fill", ["mask", "infinite"])
def test_masked_logits(shift: float, fill: str) -> None:
    raw = torch.linspace(-3, 3, 64).reshape(16, 4) + shift
    logits = categorical.mask(raw, LEGAL)
    if fill == "infinite":
        logits = raw.masked_fill(~LEGAL, -torch.inf)
    outputs = {"logits": logits.numpy()}
    action, log_prob = BatchCategorical(16, 4).sample(outputs, np.random.default_rng(0))
    assert LEGAL.gather(1, torch.tensor(action)[:, None]).all()
    want = categorical.log_prob(logits, torch.tensor(action)).numpy()
    np.testing.assert_allclose(log_prob, want, atol=1e-5)
    for row in range(16):
        drawn = Categorical(4).sample({"logits": outputs["logits"][row]}, random.Random(row))
        assert LEGAL[row, drawn.action]
        want_row = categorical.log_prob(logits[row], torch.tensor(drawn.action)).item()
        assert drawn.log_prob == pytest.approx(want_row, abs=1e-5)


@pytest.mark.parametrize("log_std", [-30.0, -20.0, 0.0, 20.0, 30.0])
def test_gaussians_of_any_deviation(log_std: float) -> None:
    mean, column = np.zeros((4, 2), np.float32), np.full((4, 2), log_std, np.float32)
    drawn = BatchDiagonalGaussian(4, 2).sample(
        {"mean": mean, "log_std": column}, np.random.default_rng(0)
    )
    one = DiagonalGaussian(2).sample({"mean": mean[0], "log_std": column[0]}, random.Random(0))
    actions = np.concatenate([drawn[0], one.action[None]])
    stds = torch.from_numpy(column[0])
    want = gaussian.log_prob(torch.zeros(5, 2), stds, torch.from_numpy(actions))
    np.testing.assert_allclose([*drawn[1], one.log_prob], want.numpy(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("alpha", "beta"), [(1.7, 1.7), (1.0, 1.0), (40.0, 1.2), (1.0, 300.0)])
def test_betas_between_bounds(alpha: float, beta: float) -> None:
    n = 64
    made = {
        "alpha": np.full((n, 2), alpha, np.float32),
        "beta": np.full((n, 2), beta, np.float32),
        "low": np.tile(np.array([-2.0, 0.0], np.float32), (n, 1)),
        "high": np.tile(np.array([2.0, 10.0], np.float32), (n, 1)),
    }
    tensors = {name: torch.from_numpy(leaf) for name, leaf in made.items()}
    action, log_prob = BatchBeta(n, 2).sample(made, np.random.default_rng(0))
    assert action.dtype == np.float32
    assert (action >= made["low"]).all()
    assert (action <= made["high"]).all()
    want = outputs.log_prob(tensors, torch.from_numpy(action)).numpy()
    np.testing.assert_allclose(log_prob, want, rtol=1e-4, atol=1e-3)
    row = {name: leaf[0] for name, leaf in made.items()}
    decoder = BoundedBeta(2)
    drawn = [decoder.sample(row, random.Random(k)) for k in range(n)]
    rows = torch.from_numpy(np.stack([one.action for one in drawn]))
    want = outputs.log_prob(tensors, rows).numpy()
    np.testing.assert_allclose([one.log_prob for one in drawn], want, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(decoder.mode(row).action, outputs.mode(tensors)[0].numpy())


def test_choices_beside_betas() -> None:
    n = 5
    rng = np.random.default_rng(0)
    made = {
        "logits": [rng.normal(size=(n, size)).astype(np.float32) for size in (2, 3)],
        **{name: np.full((n, 1), x, np.float32) for name, x in zip("ab", (2, 3), strict=True)},
        "low": np.full((n, 1), -1, np.float32),
        "high": np.full((n, 1), 1, np.float32),
    }
    made["alpha"], made["beta"] = made.pop("a"), made.pop("b")
    tensors = {
        name: [torch.from_numpy(x) for x in leaf] if name == "logits" else torch.from_numpy(leaf)
        for name, leaf in made.items()
    }
    action, log_prob = BatchMixed(n, [2, 3], 1).sample(made, rng)
    want = outputs.log_prob(tensors, torch.from_numpy(action)).numpy()
    np.testing.assert_allclose(log_prob, want, rtol=1e-5, atol=1e-5)
    row = {
        name: [x[0] for x in leaf] if name == "logits" else leaf[0] for name, leaf in made.items()
    }
    decided = decoder_for(row).mode(row)
    np.testing.assert_allclose(decided.action, outputs.mode(tensors)[0].numpy(), rtol=1e-6)
    assert torch.isfinite(outputs.entropy(tensors)).all()
