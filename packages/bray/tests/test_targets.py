"""Target networks of modules that behave otherwise in training."""

from __future__ import annotations

import torch
from torch import nn

from bray.training.off_policy.target import make_target
from bray_algo.networks.noisy import NoisyLinear


def test_a_target_judges_a_row_alike_whatever_stands_beside_it() -> None:
    network = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5))
    network(torch.randn(16, 3))
    target = make_target(network)
    rows = torch.randn(5, 3)
    before = {name: one.clone() for name, one in target.state_dict().items()}
    alone = torch.cat([target(row[None]) for row in rows])
    torch.testing.assert_close(target(rows), alone)
    assert all(torch.equal(one, before[name]) for name, one in target.state_dict().items())
    assert network.training
    assert not any(parameter.requires_grad for parameter in target.parameters())


def test_the_noise_of_a_target_stays() -> None:
    target = make_target(nn.Sequential(nn.Dropout(0.5), NoisyLinear(3, 2)))
    target[1].redraw(torch.Generator().manual_seed(1))
    x = torch.ones(1, 3)
    assert not torch.equal(target(x), target.eval()(x))
