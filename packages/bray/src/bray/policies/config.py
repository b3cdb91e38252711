"""Settings of a policy's network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

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
class TrunkConfig(LayersConfig):
    """A network from observations of any space to what an algorithm wants of it."""

    normalize_observation: bool = False
    """Whether the real numbers of observations are brought to mean 0 and deviation 1, by running
    statistics of what was trained on. On where numbers are large or of unlike sizes (positions in
    metres beside angles); off where they lie near −1 to 1 already: the statistics move while the
    policy learns. Images, categories and flags stay as they are."""
    network: str = "default"
    """What makes the network: `default` builds one for the spaces; the name of an installed entry
    point of `bray.networks`, `module:Class` or `file.py:Class` calls yours with the spaces and its
    settings."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of a network of yours, which its own `Config`, a dataclass, checks."""
    encoders: Mapping[str, str] = field(default_factory=dict)
    """What reads a leaf of the observation, by its path, such as `{camera: cnn}`: `flat`, `cnn`,
    `embedding`, `attention`, or `module:Class` of yours. Leaves without an entry are read as suits
    their kind."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkConfig(TrunkConfig):
    """A policy's network, with memory if it is wanted."""

    memory: Literal["lstm", "gru"] = "lstm"
    """What remembers, where `memory_size` is above 0: a GRU has half the state of an LSTM."""
    memory_size: NonNegativeInt = 0
    """Units of the memory behind the hidden layers; 0 is none. 32 to 256 where an observation does
    not tell all, such as what was seen a moment ago; it slows training down."""
    distribution: Literal["default", "gaussian", "squashed", "beta"] = "default"
    """How real actions are drawn. `gaussian`, the default: clipped to the bounds where they are
    taken. `squashed`: between the bounds by tanh, which reaches them slowly and never leaves
    them. `beta`: between the bounds, which it reaches without bias, with a spread that depends on
    the observation."""
