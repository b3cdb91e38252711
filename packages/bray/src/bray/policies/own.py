"""Networks of yours in place of the default ones: found by name, made, and looked at once.

A trunk is a `torch.nn.Module` with `feature_size` F, called with a batch of observations; it
returns features `[B, F]`. A class without `feature_size` is a whole policy, which answers with the
outputs that say an action, and with `value`. Both are made with the spaces and their settings: an
instance of the class's own `Config` (a dataclass) where it has one, else all settings of the
network.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bray import registry
from bray.policies.config import NetworkConfig, TrunkConfig
from bray.policies.flattening import seen_space
from bray_core import nested
from bray_core.action_vector import ActionVector
from bray_core.config import from_mapping
from bray_core.errors import ConfigError
from bray_core.nested import Nested
from bray_core.process.raised_words import raised_words
from bray_core.spaces import LeafSpace, Spaces

_OF_TRUNKS: Mapping[str, Any] = {"encoders": {}}
"""Settings that a trunk of yours takes the place of → what they are where nobody says."""
_OF_POLICIES: Mapping[str, Any] = {
    **_OF_TRUNKS,
    "memory_size": 0,
    "distribution": "default",
    "autoregressive": False,
}
"""The same of a whole policy, which has its own memory and draws actions its own way."""
_PROBED = 2
"""Rows with which a network is looked at; a trunk with one more, too: it takes any number."""


def is_own(config: TrunkConfig) -> bool:
    """Return whether a network of yours is named."""
    return config.network != "default"


def check_installed(config: object) -> None:
    """Refuse an installed network that there is not, or settings that nobody reads.

    Code of yours is looked at where it may run: when the network is made.

    Args:
        config: settings of a model, of any class.

    Raises:
        ConfigError: begins with the dotted name of a setting.
    """
    if not isinstance(config, TrunkConfig):
        return
    if not is_own(config):
        if config.settings and not any(map(registry.is_own_code, config.encoders.values())):
            raise ConfigError(
                f"model.settings: expected none with the default network, got "
                f"{dict(config.settings)}: they are those of a network of yours (model.network) or "
                "of an encoder of yours (model.encoders)"
            )
        return
    if registry.is_own_code(config.network):
        return
    try:
        own = getattr(registry.find("bray.networks", config.network, nn.Module), "Config", None)
    except ConfigError as error:
        raise ConfigError(f"model.{error}") from error
    if isinstance(own, type) and dataclasses.is_dataclass(own):
        from_mapping(config.settings, own, "model.settings")


class OwnTrunk(nn.Module):
    """A trunk of yours: it reads what is seen, without the mask of actions.

    Args:
        network: your module, with `feature_size`.
    """

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network
        self.size = int(network.feature_size)

    def forward(self, seen: Nested) -> Tensor:
        """Map observations, leaves `[…, *shape]`, to features `[…, F]`."""
        features: Tensor = self.network(seen)
        return features


class OwnTrunkOverTime(nn.Module):
    """A trunk of yours before a memory: segments `[T, B, …]` are read as one batch.

    Args:
        trunk: the trunk.
        space: space of what is seen.
    """

    def __init__(self, trunk: Any, space: Nested) -> None:
        super().__init__()
        self.trunk = trunk
        self.size = trunk.size
        self._ranks = [len(leaf.shape) for _, leaf in nested.items(space)]

    def forward(self, seen: Nested) -> Tensor:
        """Map observations, leaves `[…, *shape]`, to features `[…, F]`."""
        leaves = [leaf for _, leaf in nested.items(seen)]
        lead = leaves[0].shape[: leaves[0].ndim - self._ranks[0]]
        flat = [
            leaf.reshape(-1, *leaf.shape[leaf.ndim - rank :])
            for leaf, rank in zip(leaves, self._ranks, strict=True)
        ]
        features: Tensor = self.trunk(nested.unflatten(seen, flat))
        return features.reshape(*lead, self.size)


def own_network(spaces: Spaces, config: TrunkConfig) -> Any:
    """Make the network that a template names: a trunk if it has `feature_size`, else a policy.

    Raises:
        ConfigError: there is no such class, it cannot be made, its settings are none, or others are
            set that nothing would read.
    """
    kind = registry.find("bray.networks", config.network, nn.Module)
    network = _made("model.network", config.network, kind, spaces, config)
    if getattr(kind, "Config", None) is not None:  # without one it was given all settings
        is_policy = not hasattr(network, "feature_size")
        _check_nothing_is_ignored(config, _OF_POLICIES if is_policy else _OF_TRUNKS)
    return network


def _check_nothing_is_ignored(config: TrunkConfig, defaults: Mapping[str, Any]) -> None:
    """Refuse settings of the default network that a network with a `Config` never sees."""
    for setting, default in defaults.items():
        value = getattr(config, setting, default)
        if value != default:
            raise ConfigError(
                f"model.{setting}: expected {default!r} with {config.network!r}, which would not "
                f"see it, got {value!r}: leave it out, and make it part of the network and its "
                "Config"
            )


def _made(setting: str, name: str, kind: Any, space: Any, config: TrunkConfig) -> Any:
    own = getattr(kind, "Config", None)
    settings: Any
    if isinstance(own, type) and dataclasses.is_dataclass(own):
        settings = from_mapping(config.settings, own, "model.settings")
    elif own is None:
        settings = config
    else:
        raise ConfigError(f"{setting}: {name!r}: expected its Config to be a dataclass, got {own}")
    try:
        return kind(space, settings)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{setting}: {name!r}: expected a class that is called with the spaces and its "
            f"settings: {raised_words(error)}"
        ) from error


def own_trunk(spaces: Spaces, config: TrunkConfig) -> OwnTrunk:
    """Make the trunk that a template names.

    Raises:
        ConfigError: there is none, or it is a whole policy, or its features are none.
    """
    network = own_network(spaces, config)
    if not hasattr(network, "feature_size"):
        raise ConfigError(
            f"model.network: {config.network!r}: expected a trunk, with `feature_size` and "
            "features [B, F] for a batch of observations: a whole policy is taken by the "
            "actor-critic algorithms alone (PPO, A2C, IMPALA, APPO)"
        )
    trunk = OwnTrunk(network)
    check_features("model.network", config.network, trunk, seen_space(spaces))
    return trunk


def own_leaf_encoder(path: str, leaf: LeafSpace, name: str, config: TrunkConfig) -> OwnTrunk:
    """Make an encoder of yours for one leaf: called with its `LeafSpace` and its settings.

    Raises:
        ConfigError: there is none, or its features are none.
    """
    setting = f"model.encoders.{path or 'observation'}"
    kind = registry.find("bray.networks", name, nn.Module)
    network = _made(setting, name, kind, leaf, config)
    if not hasattr(network, "feature_size"):
        raise ConfigError(f"{setting}: {name!r}: expected a module with `feature_size`")
    encoder = OwnTrunk(network)
    check_features(setting, name, encoder, leaf)
    return encoder


def check_features(setting: str, name: str, trunk: Any, space: Nested) -> None:
    """Look at a trunk once with two rows of zeros, and with three.

    Raises:
        ConfigError: it fails, or its features are not `[2, F]` of float32; says what was expected.
    """
    for rows, word in ((_PROBED, "two"), (_PROBED + 1, "three")):
        seen = _zeros(space, rows)
        features = _called(setting, name, trunk, seen)
        wanted = (rows, trunk.size)
        if not isinstance(features, Tensor) or tuple(features.shape) != wanted:
            got = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise ConfigError(
                f"{setting}: {name!r}: expected features {list(wanted)} for {word} observations "
                f"(feature_size={trunk.size}), got {got}"
            )
        if features.dtype != torch.float32:
            raise ConfigError(
                f"{setting}: {name!r}: expected features of float32, got "
                f"{str(features.dtype).removeprefix('torch.')}: return them with `.float()`"
            )
    _check_copies(setting, name, trunk, seen)


def _check_copies(setting: str, name: str, trunk: Any, seen: Nested) -> None:
    """Refuse a network that cannot be copied once it has been called, as where it is evaluated."""
    try:
        tried = copy.deepcopy(trunk)
        tried(seen)
        copy.deepcopy(tried)
    except Exception as error:
        raise ConfigError(
            f"{setting}: {name!r}: expected a network that `copy.deepcopy` copies after a call: "
            f"{raised_words(error)}: keep no tensors with gradients as attributes (of "
            "torch.nn.utils.spectral_norm and weight_norm there are others in "
            "torch.nn.utils.parametrizations)"
        ) from error


def _zeros(space: Nested, rows: int) -> Nested:
    """Return observations of zeros `[rows, …]`, in the types in which they come."""
    return nested.map(
        lambda leaf: torch.from_numpy(np.zeros((rows, *leaf.shape), leaf.dtype)), space
    )


def _called(setting: str, name: str, module: Any, *inputs: Any) -> Any:
    try:
        outputs = module(*inputs)
    except ConfigError:
        raise
    except Exception as error:
        shapes = {path or "observation": list(leaf.shape) for path, leaf in nested.items(inputs[0])}
        raise ConfigError(
            f"{setting}: {name!r}: failed with observations {shapes}: {raised_words(error)}"
        ) from error
    if any(leaf._version for _, leaf in nested.items(inputs)):
        raise ConfigError(
            f"{setting}: {name!r}: expected observations that stay as they are, got some that its "
            "forward changed in place: write `x = x + 1`, not `x += 1`"
        )
    return outputs


def check_policy(module: Any, spaces: Spaces, config: NetworkConfig) -> Any:
    """Return a whole policy of yours, looked at once with two rows of zeros.

    Its `forward` maps observations `[B, …]` to `value [B]` and to what says the action: `logits
    [B, A]`, a list of them, `mean` and `log_std [B, D]`, or `alpha`, `beta`, `low` and `high [B,
    D]`. A recurrent one has a `state_size` S above 0, takes `state [B, S]` besides, and returns
    `state`, too.

    Raises:
        ConfigError: an output is missing or has another shape or type; names it.
    """
    if not hasattr(module, "state_size"):
        module.state_size = 0
    name = config.network
    rows = _zeros(spaces.observation, _PROBED)
    states = (torch.zeros(_PROBED, module.state_size),) if module.state_size else ()
    outputs = _called("model.network", name, module, rows, *states)
    if not isinstance(outputs, dict):
        raise ConfigError(
            f"model.network: {name!r}: expected outputs by name or, of a trunk, `feature_size`, "
            f"got {type(outputs).__name__}"
        )
    for path, shape in _wanted(spaces, module.state_size, "alpha" in outputs).items():
        found = nested.flatten(outputs).get(path)
        if not isinstance(found, Tensor) or tuple(found.shape) != shape:
            got = (
                list(found.shape) if isinstance(found, Tensor) else sorted(nested.flatten(outputs))
            )
            raise ConfigError(
                f"model.network: {name!r}: expected output {path} {list(shape)} for two "
                f"observations, got {got}"
            )
        if path != "state" and found.dtype != torch.float32:
            raise ConfigError(
                f"model.network: {name!r}: expected output {path} of float32, got "
                f"{str(found.dtype).removeprefix('torch.')}: return it with `.float()`"
            )
    leaves = [leaf for _, leaf in nested.items(outputs) if isinstance(leaf, Tensor)]
    if not any(leaf.requires_grad for leaf in leaves) and any(
        weight.requires_grad for weight in module.parameters()
    ):
        raise ConfigError(
            f"model.network: {name!r}: expected outputs with gradients, got none: leave out "
            "torch.no_grad() and .detach()"
        )
    return module


def _wanted(spaces: Spaces, state_size: int, has_beta: bool) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a policy's outputs for two rows, by path."""
    actions = ActionVector(spaces.action, spaces.origin)
    wanted: dict[str, tuple[int, ...]] = {"value": (_PROBED,)}
    if state_size:
        wanted["state"] = (_PROBED, state_size)
    if actions.is_one:
        wanted["logits"] = (_PROBED, actions.sizes[0])
    else:
        wanted |= {f"logits[{k}]": (_PROBED, size) for k, size in enumerate(actions.sizes)}
    if actions.num_reals:
        reals = ("alpha", "beta", "low", "high") if has_beta else ("mean", "log_std")
        wanted |= dict.fromkeys(reals, (_PROBED, actions.num_reals))
    return wanted
