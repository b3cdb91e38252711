from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from bray_algo import NatureCNN, PolicyValueMLP, mlp
from bray_algo.networks.convolutional import NatureEncoder
from bray_algo.networks.initialisation import orthogonal_


def test_orthogonal_weights_are_orthogonal() -> None:
    layer = orthogonal_(nn.Linear(8, 4), math.sqrt(2))
    product = layer.weight @ layer.weight.T
    assert torch.allclose(product, 2 * torch.eye(4), atol=1e-5)
    assert not layer.bias.any()


def test_outputs_have_their_shapes_and_the_policy_begins_nearly_uniform() -> None:
    outputs = PolicyValueMLP(4, 3, hidden=(16,))(torch.randn(5, 4))
    assert outputs["logits"].shape == (5, 3)
    assert outputs["value"].shape == (5,)
    assert outputs["logits"].abs().max() < 0.1


def test_the_nature_cnn_takes_frames() -> None:
    network = NatureCNN(6)
    outputs = network(torch.zeros(2, 4, 84, 84, dtype=torch.uint8))
    assert outputs["logits"].shape == (2, 6)
    assert outputs["value"].shape == (2,)
    assert sum(p.numel() for p in network.parameters()) == 1_687_719  # as in LIMITS


def test_the_encoder_gives_what_contiguous_frames_give_and_the_same_gradients() -> None:
    encoder = NatureEncoder(channels=3, hidden=8)
    frames = torch.randint(0, 256, (5, 3, 84, 84), dtype=torch.uint8)
    x = frames.float() / 255  # channels first
    for layer in encoder:
        x = layer(x)
    features = encoder(frames)
    assert features.shape == (5, 8)
    torch.testing.assert_close(features, x, atol=1e-5, rtol=1e-4)
    weights = torch.randn(5, 8)
    parameters = list(encoder.parameters())
    got = torch.autograd.grad((features * weights).sum(), parameters)
    for one, other in zip(got, torch.autograd.grad((x * weights).sum(), parameters), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


def test_the_encoder_takes_frames_as_they_lie() -> None:
    """Such as views of segments in which each frame is stored once."""
    encoder = NatureEncoder(hidden=8)
    frames = torch.randint(0, 256, (6, 84, 84), dtype=torch.uint8)
    stacks = frames.unfold(0, 4, 1).movedim(-1, 1)
    torch.testing.assert_close(encoder(stacks), encoder(stacks.contiguous()))


@pytest.mark.parametrize(("channels", "hidden"), [(0, 8), (4, 0)])
def test_the_encoder_refuses_no_channels_or_features(channels: int, hidden: int) -> None:
    with pytest.raises(ValueError, match=f"expected positive numbers, got {channels}, {hidden}"):
        NatureEncoder(channels, hidden)


@pytest.mark.parametrize("sizes", [[], [4], [4, 0]])
def test_sizes_are_checked(sizes: list[int]) -> None:
    with pytest.raises(ValueError, match="sizes: expected two or more positive"):
        mlp(sizes)


def test_activations_stand_between_the_layers() -> None:
    kinds = [type(layer) for layer in mlp([3, 5, 5, 2], nn.ReLU)]
    assert kinds == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]
    assert [type(layer) for layer in mlp([3, 2])] == [nn.Linear]


def test_the_nature_cnn_refuses_no_actions() -> None:
    with pytest.raises(ValueError, match="num_actions, channels: expected positive numbers, got 0"):
        NatureCNN(0)
