from __future__ import annotations

import pytest
import torch
from torch import nn

from bray_algo.networks.convolutional import ImpalaResNet, ResidualBlock


def test_it_has_the_parameters_of_the_figure() -> None:
    count = 0
    channels, side = 4, 84
    for depth in (16, 32, 32):
        count += channels * depth * 9 + depth + 4 * (depth * depth * 9 + depth)
        channels, side = depth, -(-side // 2)
    count += 32 * side * side * 256 + 256
    network = ImpalaResNet(4)
    assert sum(p.numel() for p in network.parameters()) == count
    assert sum(isinstance(m, nn.Conv2d) for m in network.modules()) == 15  # as in figure 3


def test_bytes_and_floats_give_the_same() -> None:
    network = ImpalaResNet(3, height=17, width=10, depths=(4, 8), num_features=6)
    frames = torch.randint(0, 256, (2, 3, 17, 10), dtype=torch.uint8)
    assert network(frames).shape == (2, 6)
    assert torch.equal(network(frames), network(frames.float() / 255))


def test_a_residual_block_adds_to_its_input() -> None:
    block = ResidualBlock(2)
    x = torch.randn(1, 2, 5, 5)
    first, second = block.first, block.second
    want = x + second(first(x.clamp(min=0)).clamp(min=0))
    assert torch.allclose(block(x), want)
    nn.init.zeros_(second.weight)
    assert torch.equal(block(x), x)


def test_numbers_are_checked() -> None:
    with pytest.raises(ValueError, match="num_features: expected positive numbers, got 0, 84"):
        ImpalaResNet(0)
    with pytest.raises(ValueError, match="expected positive numbers"):
        ImpalaResNet(4, depths=())
