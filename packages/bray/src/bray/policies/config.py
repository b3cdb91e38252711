"""Settings of a policy's network."""

from __future__ import annotations

from dataclasses import dataclass

from bray_core.settings.ranges import LayerSizes, NonNegativeInt, check_fields


@dataclass(frozen=True, kw_only=True, slots=True)
class LayersConfig:
    """A network of fully connected layers."""

    hidden: LayerSizes = (64, 64)
    """Units of the hidden layers. More units fit more, and cost time at every step: 16 to 64 for a
    handful of numbers, 256 for a robot's joints, 512 behind images."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkConfig(LayersConfig):
    """A policy's network, with memory if it is wanted."""

    memory_size: NonNegativeInt = 0
    """Units of an LSTM behind the hidden layers; 0 is none. 32 to 256 where an observation does not
    tell all, such as what was seen a moment ago; it slows training down."""
    network: str = "default"
    """What makes the network: `default` builds one for the environment's spaces; the name of an
    installed entry point of `bray.networks`, `module:Class` or `file.py:Class` calls yours with the
    spaces and these settings."""
