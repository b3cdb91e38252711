"""From observations of any space to features, and to the numbers that an algorithm wants.

A trunk maps observations, leaves `[…, *shape]`, to features `[…, F]` and has their number as
`size`. The default one reads a vector (flat leaves side by side) by a perceptron, an image by
convolutions, and several leaves each by an encoder of its own whose features are joined.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from bray.policies.config import TrunkConfig
from bray.policies.flattening import Flattening, seen_space
from bray.policies.images import is_stack_of_frames
from bray.policies.leaf_encoders import check_encoders, leaf_encoder, needs_encoder
from bray.policies.normalisation import normalised
from bray.policies.own import is_own, own_trunk
from bray_algo import mlp
from bray_algo.networks.convolutional import NatureEncoder
from bray_algo.networks.initialisation import orthogonal_
from bray_core import nested
from bray_core.nested import Nested
from bray_core.spaces import LeafSpace, Spaces

Activation: TypeAlias = Callable[[], nn.Module]
Layers: TypeAlias = Callable[..., nn.Sequential]
"""Makes fully connected layers of sizes, as `bray_algo.mlp` does."""


class FlatNetwork(nn.Sequential):
    """A perceptron on observations whose leaves are read as one vector.

    Args:
        seen: space of what is seen, without a mask.
        layers: the perceptron, from that vector and `extra` numbers on.
    """

    def __init__(self, seen: Nested, layers: nn.Sequential) -> None:
        super().__init__(*layers)
        self._flatten = Flattening(seen)

    def forward(self, seen: Nested, extra: Tensor | None = None) -> Tensor:
        """Map observations `[…, *shape]`, and numbers `[…, E]`, to the last layer's `[…, F]`."""
        x = self.vectors(seen)
        x = x if extra is None else torch.cat([x, extra.float()], -1)
        for layer in self:
            x = layer(x)
        return x

    def vectors(self, seen: Nested) -> Tensor:
        """Map observations `[…, *shape]` to what the first layer reads, float32 `[…, D]`."""
        return self._flatten(seen)


class FlatTrunk(nn.Sequential):
    """A perceptron whose last layer has its activation, on observations read as one vector."""

    def __init__(self, seen: Nested, hidden: tuple[int, ...], activation: Activation) -> None:
        flatten = Flattening(seen)
        layers = mlp([flatten.size, *hidden], activation, output_gain=math.sqrt(2))
        super().__init__(layers, activation())
        self._flatten = flatten
        self.size = hidden[-1]

    def forward(self, seen: Nested) -> Tensor:
        """Map observations `[…, *shape]` to features `[…, F]`."""
        layers, last = self
        features: Tensor = last(layers(self._flatten(seen)))
        return features


class JointTrunk(nn.Module):
    """An encoder for each leaf that needs one, the other leaves flat, joined by a perceptron.

    Args:
        seen: space of what is seen.
        config: sizes of the layers behind, and what reads the leaves.
        activation: makes the activation of these layers.
    """

    def __init__(self, seen: Nested, config: TrunkConfig, activation: Activation) -> None:
        super().__init__()
        leaves = nested.flatten(seen)
        # Names of modules hold no dots.
        self._paths = [path for path, leaf in leaves.items() if needs_encoder(path, leaf, config)]
        self.encoders = nn.ModuleList(
            leaf_encoder(path, leaves[path], config) for path in self._paths
        )
        flat = {path: leaf for path, leaf in leaves.items() if path not in self._paths}
        self._flat = list(flat)
        self._flatten = Flattening(list(flat.values())) if flat else None
        sizes: list[Any] = [encoder.size for encoder in self.encoders]
        joined = sum(sizes)
        joined += self._flatten.size if self._flatten else 0
        self.layers = nn.Sequential(
            mlp([joined, *config.hidden], activation, output_gain=math.sqrt(2)), activation()
        )
        self.size = config.hidden[-1]

    def forward(self, seen: Nested) -> Tensor:
        """Map observations, leaves `[…, *shape]`, to features `[…, F]`."""
        leaves = nested.flatten(seen)
        read = [
            encoder(leaves[path]) for path, encoder in zip(self._paths, self.encoders, strict=True)
        ]
        if self._flatten is not None:
            read.append(self._flatten([leaves[path] for path in self._flat]))
        features: Tensor = self.layers(torch.cat(read, -1) if len(read) > 1 else read[0])
        return features


class FramesTrunk(NatureEncoder):
    """The network of Mnih et al. 2015 on stacks of frames of 84 × 84; its weights keep their names.

    Args:
        channels: number C of frames.
        size: number F of features.
    """

    def __init__(self, channels: int, size: int) -> None:
        super().__init__(channels, size)
        self.size = size

    def forward(self, seen: Tensor) -> Tensor:
        """Map frames `[…, C, H, W]` to features `[…, F]`."""
        if seen.ndim == 4:
            return super().forward(seen)
        features = super().forward(seen.flatten(0, -4))
        return features.reshape(*seen.shape[:-3], self.size)


def is_flat(spaces: Spaces, config: TrunkConfig) -> bool:
    """Return whether observations are read as one vector, by nothing that has weights."""
    leaves = nested.items(seen_space(spaces))
    return not is_own(config) and not any(needs_encoder(p, leaf, config) for p, leaf in leaves)


def make_trunk(spaces: Spaces, config: TrunkConfig, activation: Activation = nn.Tanh) -> Any:
    """Make what reads observations; it has the number of its features as `size`.

    Args:
        spaces: what the policy sees and may do.
        config: the network's settings.
        activation: makes the activation of fully connected layers.

    Raises:
        ConfigError: a network or an encoder of yours is none, an encoder is of a leaf that there
            is not, or a mask does not fit.
    """
    spaces = normalised(spaces, config)
    if is_own(config):
        return own_trunk(spaces, config)
    seen = seen_space(spaces)
    check_encoders(seen, config)
    if is_flat(spaces, config):
        return FlatTrunk(seen, config.hidden, activation)
    if isinstance(seen, LeafSpace) and len(config.hidden) == 1:  # the encoder's features suffice
        if not config.encoders and is_stack_of_frames(seen):
            return FramesTrunk(seen.shape[0], config.hidden[0])
        return leaf_encoder("", seen, config, config.hidden[0])
    return JointTrunk(seen, config, activation)


def make_network(
    spaces: Spaces,
    config: TrunkConfig,
    outputs: int,
    activation: Activation = nn.Tanh,
    *,
    num_extra: int = 0,
    output_gain: float = 1.0,
    layers: Layers = mlp,
) -> nn.Module:
    """Make a network from observations to so many numbers.

    Called with observations, without their mask, and `[…, num_extra]` further numbers if there are
    any, such as an action that it judges.

    Args:
        spaces: what the policy sees and may do.
        config: the network's settings.
        outputs: number of outputs.
        activation: makes the activation of fully connected layers.
        num_extra: further inputs.
        output_gain: gain of the last layer's initialisation; 0.01 begins near 0.
        layers: makes the fully connected layers, such as normalised ones; those of a trunk, behind
            which there are `hidden` ones of these then, stay as they are.

    Raises:
        ConfigError: a network or an encoder of yours is none, an encoder is of a leaf that there
            is not, or a mask does not fit.
    """
    if is_flat(spaces, config):
        seen = seen_space(normalised(spaces, config))
        check_encoders(seen, config)
        sizes = [Flattening(seen).size + num_extra, *config.hidden, outputs]
        return FlatNetwork(seen, layers(sizes, activation, output_gain=output_gain))
    trunk = make_trunk(spaces, config, activation)
    if not num_extra and layers is mlp:  # the trunk's own layers suffice
        return TrunkNetwork(trunk, orthogonal_(nn.Linear(trunk.size, outputs), output_gain))
    sizes = [trunk.size + num_extra, *config.hidden, outputs]
    return TrunkNetwork(trunk, layers(sizes, activation, output_gain=output_gain))


class TrunkNetwork(nn.Module):
    """A trunk and the layers behind it: one, or with further inputs a perceptron."""

    def __init__(self, trunk: Any, head: nn.Module) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = head

    def forward(self, seen: Nested, extra: Tensor | None = None) -> Tensor:
        """Map observations, leaves `[…, *shape]`, and numbers `[…, E]`, to `[…, outputs]`."""
        features = self.trunk(seen)
        if extra is not None:
            features = torch.cat([features, extra.float()], -1)
        numbers: Tensor = self.head(features)
        return numbers
