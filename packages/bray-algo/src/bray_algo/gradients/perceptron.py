"""A perceptron's gradients by hand: what autograd would find, without its books.

For two layers of 64 units and a hundred rows, recording a graph and going back through it takes
several times as long as the arithmetic. Shapes: N rows, D inputs, O outputs.

What is here is called under `torch.no_grad()`: entering it takes as long as a small operation, so
who makes a step of several parts enters it once.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bray_algo.gradients.products import linear, to_inputs, to_weights

_ACTIVATIONS: dict[type[nn.Module], tuple[Any, Any]] = {
    nn.Tanh: (torch.tanh_, torch.ops.aten.tanh_backward.grad_input),
    nn.ReLU: (torch.relu_, partial(torch.ops.aten.threshold_backward.grad_input, threshold=0)),
}
"""Each activation in place, and what writes the gradient of its input to `grad_input`, from that of
its output and the output. In place, as what a step touches should fit into a processor's cache."""


class PerceptronGradients:
    """Runs linear layers with activations between them forward, and then backward, without graph.

    Args:
        layers: what `is_perceptron` approves of.

    Examples:
        >>> layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        >>> for parameter in layers.parameters():
        ...     parameter.grad = torch.empty_like(parameter)
        >>> gradients = PerceptronGradients(layers)
        >>> with torch.no_grad():
        ...     outputs = gradients.forward(torch.ones(5, 3))
        ...     gradients.backward(torch.ones(5, 2))
        >>> layers[2].bias.grad
        tensor([5., 5.])
    """

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        listed: list[Any] = list(layers)
        self._weights = [(layer.weight, layer.bias) for layer in listed[::2]]
        self._activations = [_ACTIVATIONS[type(one)] for one in listed[1::2]]
        self._inputs: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        """Map `[N, D]` to `[N, O]`, and keep what `backward` needs of it."""
        self._inputs = [x]
        for (weight, bias), (activate, _) in zip(self._weights, self._activations, strict=False):
            x = activate(linear(x, weight, bias))
            self._inputs.append(x)
        return linear(x, *self._weights[-1])

    def backward(self, gradient: Tensor) -> None:
        """Write the gradients of all weights into their `grad`, which must be there.

        Args:
            gradient: gradient of the first n rows of what the last `forward` returned, `[n, O]`;
                that of the other rows is 0.
        """
        rows = gradient.shape[0]
        for index in reversed(range(len(self._weights))):
            (weight, bias), x = self._weights[index], self._inputs[index]
            x = x if x.shape[0] == rows else x[:rows]
            to_weights(gradient, x, weight.grad)
            torch.sum(gradient, 0, out=bias.grad)
            if index:
                gradient = self._before(index - 1, to_inputs(gradient, weight), x)

    def input_gradient(self, gradient: Tensor, last: int) -> Tensor:
        """Return the gradient of the last inputs, `[N, last]`; that of the weights is not found.

        Args:
            gradient: gradient of what the last `forward` returned, `[N, O]`.
            last: number of inputs, counted from the end, such as an action's behind what was seen.
        """
        for index in reversed(range(1, len(self._weights))):
            weight, x = self._weights[index][0], self._inputs[index]
            gradient = self._before(index - 1, to_inputs(gradient, weight), x)
        weight = self._weights[0][0]
        return to_inputs(gradient, weight[:, weight.shape[1] - last :])

    def _before(self, index: int, gradient: Tensor, x: Tensor) -> Tensor:
        """Return the gradient before an activation, in the memory of that behind it.

        Args:
            index: number of the activation.
            gradient: gradient of what it returned.
            x: what it returned.
        """
        self._activations[index][1](gradient, x, grad_input=gradient)
        return gradient


def is_perceptron(layers: Iterable[nn.Module]) -> bool:
    """Return whether these are linear layers with tanh or ReLU between them, as `mlp` makes."""
    listed = list(layers)
    return (
        len(listed) % 2 == 1
        and all(type(one) is nn.Linear and one.bias is not None for one in listed[::2])
        and all(type(one) in _ACTIVATIONS for one in listed[1::2])
    )


def is_trained_in_float32(module: nn.Module) -> bool:
    """Return whether all parameters of a module are trained, in float32 and on the CPU."""
    return all(
        parameter.requires_grad
        and parameter.dtype == torch.float32
        and parameter.device.type == "cpu"
        for parameter in module.parameters()
    )
