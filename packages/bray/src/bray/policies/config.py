"""Settings of a policy's network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from bray_core.errors import ConfigError
from bray_core.settings.ranges import LayerSizes, NonNegativeInt, PositiveInt, check_fields


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
    begin_from: str = ""
    """Folder of a trial, such as `runs/offline`, whose newest checkpoint's policy training begins
    with, and its critics where they match: what was learnt from a data set goes on online. The
    policy must be of the same kind and size (`iql`, `cql` → `sac`, `cql` of one choice → `dqn`,
    `td3_bc` → `td3`, `bc` → `ppo`). Empty: random weights. A trial of one's own that is resumed
    goes on with its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryConfig(TrunkConfig):
    """A network from observations of any space, with a memory behind it if it is wanted."""

    memory: Literal["lstm", "gru", "gtrxl"] = "lstm"
    """What remembers, where `memory_size` is above 0. `lstm` and `gru` sum up all that was, and may
    forget; a GRU has half the state of an LSTM. `gtrxl`, a gated Transformer-XL (Parisotto et al.
    2019), looks back at the last `memory_length` steps themselves: sharper within that reach, blind
    beyond it, and dearer at every step."""
    memory_size: NonNegativeInt = 0
    """Units of the memory behind the hidden layers; 0 is none. 32 to 256 where an observation does
    not tell all, such as what was seen a moment ago; it slows training down. Of `gtrxl` the width
    of its layers, an even number."""
    memory_length: PositiveInt = 16
    """Steps that each layer of `gtrxl` looks back; `lstm` and `gru` have no use for it. What
    matters for longer than that is not seen; cost and the state that each segment stores grow with
    it. 8 to 128."""
    memory_layers: PositiveInt = 1
    """Layers of `gtrxl`, each of which looks `memory_length` steps further back; `lstm` and `gru`
    have one. 1 for a cue to remember, 2 to 4 where what was seen must be put together; more learn
    slower and store more."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.memory == "gtrxl" and self.memory_size % 2:
            raise ConfigError(
                f"memory_size: expected an even number for memory=gtrxl, got {self.memory_size}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkConfig(MemoryConfig):
    """A policy's network, with memory if it is wanted."""

    distribution: Literal["default", "gaussian", "squashed", "beta"] = "default"
    """How real actions are drawn. `gaussian`, the default: clipped to the bounds where they are
    taken. `squashed`: between the bounds by tanh, which reaches them slowly and never leaves
    them. `beta`: between the bounds, which it reaches without bias, with a spread that depends on
    the observation."""
    autoregressive: bool = False
    """Whether later choices of an action depend on earlier ones, and reals on all of them, in place
    of each being drawn by itself. On where parts must fit together, such as a kind of action and
    its target, and several ways are good; off where one way is best, as it takes a number for each
    pair of values: slower, and large actions are refused."""
    action_order: tuple[str, ...] = ()
    """Order in which the choices of a Dict or Tuple are drawn for `autoregressive`, by their paths,
    such as `[kind, target]`; empty takes them as the space has them, a Dict's by name. Put first
    what the others depend on. Reals come last."""

    def __post_init__(self) -> None:
        MemoryConfig.__post_init__(self)
        if self.action_order and not self.autoregressive:
            raise ConfigError(
                f"action_order: expected autoregressive=true beside it, got {self.action_order}"
            )
