from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from bray_algo.networks.initialisation import initialise_


def test_orthogonal_rows_have_the_gain() -> None:
    layer = nn.Linear(8, 4)
    initialise_(layer, "orthogonal", 0.5)
    assert torch.allclose(layer.weight @ layer.weight.T, 0.25 * torch.eye(4), atol=1e-6)
    assert not layer.bias.any()


@pytest.mark.parametrize(
    ("name", "variance"),
    [
        ("xavier_uniform", 2 / (300 + 500)),
        ("xavier_normal", 2 / (300 + 500)),
        ("kaiming_uniform", 2 / 300),
        ("kaiming_normal", 2 / 300),
        ("lecun_normal", 1 / 300),
        ("zeros", 0.0),
    ],
)
def test_variances_are_those_of_the_papers(name: str, variance: float) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(300, 500)
    initialise_(layer, name, 3.0)  # type: ignore[arg-type]
    # 150,000 weights: the relative error of their variance is under √(2 / n), five times that
    assert layer.weight.var().item() == pytest.approx(9 * variance, rel=5 * math.sqrt(2 / 150_000))


def test_every_layer_inside_is_initialised() -> None:
    network = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Sequential(nn.Linear(3, 3)))
    assert initialise_(network, "zeros") is network
    assert not any(p.any() for p in network.parameters())


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match=r"name: expected one of .*'zeros'.*, got 'uniform'"):
        initialise_(nn.Linear(1, 1), "uniform")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"module: expected linear or convolutional .* got ReLU"):
        initialise_(nn.ReLU(), "zeros")
