"""Normalisation behind every layer of a network, which lets Q-learning do without targets."""

from __future__ import annotations

from torch import nn

from bray.policies.own import OwnTrunk


def add_layer_norms(network: nn.Module) -> nn.Module:
    """Put a layer normalisation behind each layer of the default networks, in place; return it.

    Ba et al. 2016, "Layer normalization". Convolutions are normalised over channels and places
    together, with a scale for each channel. A network of yours stays as you wrote it.

    Args:
        network: a trunk of `bray.policies.trunks`.
    """
    if isinstance(network, OwnTrunk):
        return network
    for child in network.children():
        add_layer_norms(child)
    if isinstance(network, nn.Sequential):
        for at in reversed(range(len(network))):
            norm = _norm_behind(network[at])
            if norm is not None:
                network.insert(at + 1, norm)
    return network


def _norm_behind(layer: nn.Module) -> nn.Module | None:
    if isinstance(layer, nn.Linear):
        return nn.LayerNorm(layer.out_features)
    if isinstance(layer, nn.Conv2d):
        return nn.GroupNorm(1, layer.out_channels)
    return None
