"""Initial weights: orthogonal ones, or by a name that a configuration can choose."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, get_args

from torch import Tensor, nn

from bray_algo.validation.scalars import check_number

Initialisation = Literal[
    "orthogonal",
    "xavier_uniform",
    "xavier_normal",
    "kaiming_uniform",
    "kaiming_normal",
    "lecun_normal",
    "zeros",
]

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def orthogonal_(layer: nn.Linear | nn.Conv2d, gain: float) -> nn.Linear | nn.Conv2d:
    """Initialise a layer's weight orthogonally with this gain, its bias with zeros.

    Saxe et al. 2014, "Exact solutions to the nonlinear dynamics of learning in deep linear neural
    networks".

    Raises:
        ValueError: the gain is not finite.
    """
    check_number("gain", gain)
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def initialise_(module: nn.Module, name: Initialisation, gain: float = 1.0) -> nn.Module:
    """Initialise every linear and convolutional layer inside a module; biases become zero.

    Args:
        module: Layer, or module that holds some.
        name: `orthogonal` (Saxe et al. 2014), `xavier_*` (Glorot & Bengio 2010: variance
            2 / (fan in + fan out)), `kaiming_*` (He et al. 2015, for ReLU: 2 / fan in),
            `lecun_normal` (LeCun et al. 1998: 1 / fan in) or `zeros`.
        gain: Factor on the weights: √2 before a ReLU with `orthogonal`, 0.01 for a policy's last
            layer. `kaiming_*` have their √2 already. Far too large saturates a network, far too
            small gives it no gradient.

    Raises:
        ValueError: an unknown name, a module without such a layer, or a gain that is not finite.

    Examples:
        >>> layer = initialise_(nn.Linear(4, 2), "orthogonal", 0.01)
        >>> bool(layer.weight.abs().max() <= 0.01)
        True
    """
    check_number("gain", gain)
    if name not in get_args(Initialisation):
        raise ValueError(f"name: expected one of {get_args(Initialisation)}, got {name!r}")
    layers = [layer for layer in module.modules() if isinstance(layer, _LAYERS)]
    if not layers:
        raise ValueError(f"module: expected linear or convolutional layers, got {module!r}")
    for layer in layers:
        _fill(layer.weight, name, gain)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return module


def _fill(weight: Tensor, name: Initialisation, gain: float) -> None:
    fill: dict[str, Callable[[Tensor], Tensor]] = {
        "orthogonal": nn.init.orthogonal_,
        "xavier_uniform": nn.init.xavier_uniform_,
        "xavier_normal": nn.init.xavier_normal_,
        "kaiming_uniform": partial(nn.init.kaiming_uniform_, nonlinearity="relu"),
        "kaiming_normal": partial(nn.init.kaiming_normal_, nonlinearity="relu"),
        "lecun_normal": partial(nn.init.kaiming_normal_, nonlinearity="linear"),
        "zeros": nn.init.zeros_,
    }
    fill[name](weight)
    weight.data.mul_(gain)
