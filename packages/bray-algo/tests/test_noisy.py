from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from bray_algo.networks.noisy import NoisyLinear, redraw_noise_


def test_the_noise_is_factorised() -> None:
    layer = NoisyLinear(3, 2)
    generator, again = torch.Generator().manual_seed(4), torch.Generator().manual_seed(4)
    layer.redraw(generator)
    drawn = [torch.randn(size, generator=again) for size in (3, 2)]
    into, out = ([math.copysign(math.sqrt(abs(x)), x) for x in noise.tolist()] for noise in drawn)
    features = torch.randn(5, 3)
    got = layer(features)
    for row in range(5):
        for j in range(2):
            want = layer.bias[j] + layer.bias_sigma[j] * out[j]
            for i in range(3):
                weight = layer.weight[j, i] + layer.weight_sigma[j, i] * out[j] * into[i]
                want = want + weight * features[row, i]
            assert got[row, j].item() == pytest.approx(want.item(), rel=1e-4, abs=1e-5)


def test_first_weights_are_the_papers() -> None:
    layer = NoisyLinear(16, 400)
    assert layer.weight_sigma.unique().item() == pytest.approx(0.5 / 4)
    assert layer.bias_sigma.unique().item() == pytest.approx(0.5 / 4)
    assert layer.weight.abs().max() <= 1 / 4
    # Uniform within ±1/4: the deviation is 1/4 / √3; 6,400 draws.
    assert layer.weight.std().item() == pytest.approx(0.25 / math.sqrt(3), rel=0.05)


def test_noise_stays_until_it_is_drawn_and_evaluation_has_none() -> None:
    network = nn.Sequential(NoisyLinear(3, 8), nn.ReLU(), nn.Sequential(NoisyLinear(8, 2)))
    features = torch.randn(4, 3)
    first = network(features)
    assert torch.equal(first, network(features))
    redraw_noise_(network)
    assert not torch.equal(first, network(features))
    network.eval()
    mean = network(features)
    redraw_noise_(network)
    assert torch.equal(mean, network(features))
    assert all("noise" not in name for name in network.state_dict())


def test_the_noise_has_mean_zero_and_the_papers_variance() -> None:
    layer = NoisyLinear(1, 1)
    generator = torch.Generator().manual_seed(0)
    products = []
    for _ in range(4000):
        layer.redraw(generator)
        products.append((layer.output_noise * layer.input_noise).item())
    drawn = torch.tensor(products)
    # Var f(ε) = E|ε| = √(2/π), so the product's is 2/π; five standard errors.
    assert abs(drawn.mean()) < 5 * math.sqrt(2 / math.pi / 4000)
    assert drawn.square().mean().item() == pytest.approx(2 / math.pi, abs=5 * 1.0 / 63)


def test_both_mean_and_scale_learn() -> None:
    layer = NoisyLinear(3, 2).double()
    layer.redraw()
    features = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, (features,))
    layer(torch.ones(1, 3, dtype=torch.float64)).sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())
    assert torch.allclose(
        layer.weight_sigma.grad,  # type: ignore[arg-type]
        torch.outer(layer.output_noise, layer.input_noise),
    )


@pytest.mark.parametrize("sizes", [(0, 1), (1, 0), (1, 1, 0.0), (1, 1, -1.0)])
def test_nonsense_is_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="in_features, out_features, sigma: expected positive"):
        NoisyLinear(*sizes)


def test_several_draws_at_once_are_the_layer_with_each() -> None:
    torch.manual_seed(0)
    layer = NoisyLinear(4, 3)
    features, noise_in, noise_out = torch.randn(5, 4), torch.randn(2, 4), torch.randn(2, 3)
    got = layer.draws(features, noise_in, noise_out)
    for draw in range(2):
        layer.input_noise.copy_(noise_in[draw])
        layer.output_noise.copy_(noise_out[draw])
        torch.testing.assert_close(got[:, draw], layer(features))
