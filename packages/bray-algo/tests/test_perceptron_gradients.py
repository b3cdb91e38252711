"""Gradients of perceptrons and distributions by hand, beside those of autograd."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bray_algo import mlp
from bray_algo.distributions import categorical, gaussian, multi_categorical, squashed_gaussian
from bray_algo.gradients import heads, products
from bray_algo.gradients.perceptron import PerceptronGradients, is_perceptron


@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
@pytest.mark.parametrize("sizes", [[3, 2], [3, 8, 2], [5, 8, 6, 1]])
@pytest.mark.parametrize("rows", [1, 4, 10])
def test_a_perceptron_has_the_gradients_of_autograd(
    activation: Any, sizes: list[int], rows: int
) -> None:
    torch.manual_seed(0)
    layers = mlp(sizes, activation).double()
    x, weights = torch.randn(10, sizes[0]).double(), torch.randn(rows, sizes[-1]).double()
    outputs = layers(x)
    (outputs[:rows] * weights).sum().backward()
    found = [parameter.grad for parameter in layers.parameters()]
    for parameter in layers.parameters():
        parameter.grad = torch.full_like(parameter, torch.nan)
    by_hand = PerceptronGradients(layers)
    with torch.no_grad():
        torch.testing.assert_close(by_hand.forward(x), outputs, rtol=1e-12, atol=1e-12)
        by_hand.backward(weights)
    ours = [parameter.grad for parameter in layers.parameters()]
    torch.testing.assert_close(ours, found, rtol=1e-11, atol=1e-12)


def test_what_is_no_perceptron() -> None:
    assert is_perceptron(mlp([3, 4, 2]))
    assert not is_perceptron([nn.Linear(3, 4), nn.Tanh()])
    assert not is_perceptron([nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2)])
    assert not is_perceptron([nn.Linear(3, 4, bias=False)])
    assert not is_perceptron([nn.LayerNorm(3), nn.Tanh(), nn.Linear(3, 2)])


def compare(parameters: list[Tensor], log_prob: Tensor, entropy: Tensor, found: Any) -> None:
    """Compare values and gradients, of which each row of log probabilities has another one."""
    of_log_prob = torch.linspace(-1, 2, len(log_prob), dtype=torch.float64)
    loss = (log_prob * of_log_prob).sum() - 0.3 * entropy.sum()
    wanted = torch.autograd.grad(loss, parameters)
    our_log_prob, our_entropy, backward = found
    torch.testing.assert_close(our_log_prob, log_prob.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(our_entropy, entropy.detach(), rtol=1e-12, atol=1e-12)
    ours = backward(of_log_prob, -0.3)
    ours = ours if isinstance(ours, tuple) else (ours,)
    torch.testing.assert_close(ours, wanted, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("rows", [1, 6])
def test_choices_have_the_gradients_of_autograd(rows: int) -> None:
    torch.manual_seed(1)
    logits = (3 * torch.randn(rows, 5).double()).requires_grad_()
    action = torch.arange(rows) % 5
    both = categorical.log_prob_and_entropy(logits, action)
    compare([logits], *both, heads.categorical(logits.detach(), action))


@pytest.mark.parametrize("rows", [1, 6])
def test_several_choices_have_the_gradients_of_autograd(rows: int) -> None:
    torch.manual_seed(2)
    logits = torch.randn(rows, 7).double().requires_grad_()
    action = torch.stack([torch.arange(rows) % 3, torch.arange(rows) % 4], -1)
    parts = multi_categorical.split(logits, [3, 4])
    both = multi_categorical.log_prob(parts, action), multi_categorical.entropy(parts)
    compare([logits], *both, heads.categoricals(logits.detach(), [3, 4], action))


@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("log_std", [[0.0, -1.0, 0.5], [-25.0, 0.1, 0.2]])
def test_reals_have_the_gradients_of_autograd(rows: int, log_std: list[float]) -> None:
    torch.manual_seed(3)
    mean = torch.randn(rows, 3).double().requires_grad_()
    spread = torch.tensor(log_std, dtype=torch.float64, requires_grad=True)
    action = mean.detach() + spread.detach().clamp(-20, 20).exp()
    both = gaussian.log_prob(mean, spread, action), gaussian.entropy(mean, spread)
    compare([mean, spread], *both, heads.reals(mean.detach(), spread.detach(), action))


def test_an_action_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^action: expected 0 to 1, got 0 to 2"):
        heads.categorical(torch.zeros(2, 2), torch.tensor([0, 2]))


@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
@pytest.mark.parametrize("sizes", [[3, 2], [5, 8, 6, 1]])
def test_the_gradient_of_the_last_inputs(activation: Any, sizes: list[int]) -> None:
    torch.manual_seed(4)
    layers = mlp(sizes, activation).double()
    x = torch.randn(7, sizes[0]).double().requires_grad_()
    weights = torch.randn(7, sizes[-1]).double()
    (wanted,) = torch.autograd.grad((layers(x) * weights).sum(), x)
    by_hand = PerceptronGradients(layers)
    with torch.no_grad():
        by_hand.forward(x)
        found = by_hand.input_gradient(weights, 2)
    torch.testing.assert_close(found, wanted[:, -2:], rtol=1e-11, atol=1e-12)


def test_squashed_draws_have_the_gradients_of_autograd() -> None:
    torch.manual_seed(5)
    mean = (2 * torch.randn(9, 3).double()).requires_grad_()
    log_std = torch.randn(9, 3).double()
    log_std[0, 0] = 25.0  # held at 20
    log_std.requires_grad_()
    torch.manual_seed(6)
    action, log_prob = squashed_gaussian.sample_with_log_prob(mean, log_std)
    of_action, share = torch.randn(9, 3).double(), torch.tensor(0.3).double()
    loss = (action * of_action).sum() + share * log_prob.sum()
    wanted = torch.autograd.grad(loss, [mean, log_std])
    torch.manual_seed(6)
    ours, our_log_prob, backward = heads.squashed(mean.detach(), log_std.detach())
    torch.testing.assert_close(ours, action.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(our_log_prob, log_prob.detach(), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(backward(of_action, share), wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("is_quicker", [False, True])
def test_large_products_by_either_library(
    is_quicker: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_quicker and not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this torch has no oneDNN")
    monkeypatch.setattr(products, "is_onednn_quicker", lambda: is_quicker)
    torch.manual_seed(7)
    x, weight, bias = torch.randn(256, 128), torch.randn(128, 128), torch.randn(128)
    gradient, found = torch.randn(256, 128), torch.empty(128, 128)
    exact = [one.double() for one in (x, weight, bias, gradient)]
    outputs = products.linear(x, weight, bias).double()
    torch.testing.assert_close(outputs, exact[0] @ exact[1].t() + exact[2], rtol=0, atol=1e-3)
    inputs = products.to_inputs(gradient, weight).double()
    torch.testing.assert_close(inputs, exact[3] @ exact[1], rtol=0, atol=1e-3)
    products.to_weights(gradient, x, found)
    torch.testing.assert_close(found.double(), exact[3].t() @ exact[0], rtol=0, atol=1e-3)
