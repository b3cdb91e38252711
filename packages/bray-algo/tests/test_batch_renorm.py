"""Batch renormalisation against Algorithm 1 of its paper, in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from bray_algo.networks.batch_renorm import BatchRenorm, renormed_mlp

D = 3


def batches(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [
        rng.normal(size=(8, D)) * rng.uniform(0.1, 9, D) + rng.normal(size=D) * 3
        for _ in range(count)
    ]


def test_against_the_algorithm_of_the_paper() -> None:
    layer = BatchRenorm(D, momentum=0.1, warmup=2, most_scale=2.0, most_shift=0.5).double()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([1.0, 2.0, 0.5]))
        layer.bias.copy_(torch.tensor([0.0, -1.0, 3.0]))
    gamma, beta = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    mean, variance, epsilon = np.zeros(D), np.ones(D), 1e-3
    held = 0
    for index, x in enumerate(batches(12)):
        mu, std = x.mean(0), np.sqrt(x.var(0) + epsilon)
        sigma = np.sqrt(variance + epsilon)
        r, d = np.ones(D), np.zeros(D)
        if index >= 2:
            r, d = np.clip(std / sigma, 0.5, 2.0), np.clip((mu - mean) / sigma, -0.5, 0.5)
            held += int((np.abs(d) == 0.5).sum())
        want = ((x - mu) / std * r + d) * gamma + beta
        np.testing.assert_allclose(layer(torch.tensor(x)).detach().numpy(), want)
        mean, variance = mean + 0.1 * (mu - mean), variance + 0.1 * (x.var(0) - variance)
    assert held
    np.testing.assert_allclose(layer.mean.numpy(), mean)
    layer.eval()
    x = batches(1)[0]
    want = (x - mean) / np.sqrt(variance + epsilon) * gamma + beta
    np.testing.assert_allclose(layer(torch.tensor(x)).detach().numpy(), want)
    np.testing.assert_allclose(layer.mean.numpy(), mean, err_msg="eval() learns nothing")


def test_within_the_bounds_training_is_what_is_played() -> None:
    layer = BatchRenorm(D, warmup=0, most_scale=1e6, most_shift=1e6).double()
    x = torch.tensor(batches(1)[0])
    played = layer.eval()(x)
    torch.testing.assert_close(layer.train()(x), played)


def test_the_correction_is_a_constant_to_the_gradient() -> None:
    x = torch.randn(6, D, dtype=torch.float64, requires_grad=True)
    plain, corrected = BatchRenorm(D).double(), BatchRenorm(D, warmup=0).double()
    with torch.no_grad():
        corrected.variance.fill_(4.0)
    scale = ((x.var(0, unbiased=False) + 1e-3) / (4.0 + 1e-3)).sqrt().clamp(1 / 3, 3).detach()
    weight = torch.randn(6, D, dtype=torch.float64)
    (one,) = torch.autograd.grad((plain(x) * weight * scale).sum(), x)
    (other,) = torch.autograd.grad((corrected(x) * weight).sum(), x)
    torch.testing.assert_close(one, other)


def test_a_perceptron_of_normalised_layers() -> None:
    made = renormed_mlp([4, 8, 8, 2])
    kinds = [type(layer) for layer in made]
    block = [BatchRenorm, nn.Linear]
    assert kinds == [*block, nn.ReLU, *block, nn.ReLU, *block]
    assert made(torch.randn(5, 4)).shape == (5, 2)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"x: expected \[..., 3\], got shape \(2, 4\)"):
        BatchRenorm(D)(torch.zeros(2, 4))
    with pytest.raises(ValueError, match="momentum: expected more than 0 and at most 1, got 0"):
        BatchRenorm(D, momentum=0.0)
    with pytest.raises(ValueError, match="sizes: expected two or more positive sizes"):
        renormed_mlp([3])
