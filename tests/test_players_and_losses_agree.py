"""What players draw, in numpy, has the probability that losses give it, in torch."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from bray_actor.policy.batch_decoder import BatchCategorical, BatchDiagonalGaussian
from bray_actor.policy.decoder import Categorical, DiagonalGaussian
from bray_algo.distributions import categorical, gaussian

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
