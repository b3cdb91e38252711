"""A network of yours in place of the default one: found by name, made, and looked at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from bray import registry
from bray.policies.config import NetworkConfig
from bray.policies.networks import example_inputs
from bray.sources.environments import Spaces
from bray_core.errors import ConfigError


def own_policy(spaces: Spaces, config: NetworkConfig, seed: int) -> Any:
    """Make the network that a template names, the same for the same seed.

    It is a whole policy: its `forward` maps observations `[B, …]` to `value [B]` and to what says
    the action, such as `logits [B, A]` or `mean` and `log_std [B, D]`. A recurrent one has a
    `state_size` S above 0, takes `state [B, S]` besides, and returns `state`, too.

    Args:
        spaces: what the environment shows and takes; the class is called with them.
        config: names the class, which is called with these settings, too.
        seed: seed of its first weights.

    Raises:
        ConfigError: there is no such class, or it is no such network.
    """
    made = registry.find("bray.networks", config.network, nn.Module)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            module = made(spaces, config)
        except TypeError as error:
            raise ConfigError(
                f"model.network: {config.network!r}: expected a class that is called with the "
                f"spaces and the settings of the network: {error}"
            ) from error
    if not hasattr(module, "state_size"):
        module.state_size = 0
    _check(module, spaces, config.network)
    return module


def _check(module: Any, spaces: Spaces, name: str) -> None:
    """Refuse a network whose answer to one observation is none that an actor understands."""
    example = example_inputs(spaces, module.state_size)
    inputs = example if isinstance(example, tuple) else (example,)
    with torch.no_grad():
        outputs = module(*(_tensors(one) for one in inputs))
    wanted = {"value"} | ({"state"} if module.state_size else set())
    if not isinstance(outputs, dict) or not wanted <= outputs.keys():
        got = sorted(outputs) if isinstance(outputs, dict) else type(outputs).__name__
        raise ConfigError(
            f"model.network: {name!r}: expected outputs {sorted(wanted)} and those of the action "
            f"by name, got {got}"
        )
    if not {"logits", "mean"} & outputs.keys():
        raise ConfigError(
            f"model.network: {name!r}: expected `logits`, or `mean` and `log_std`, among the "
            f"outputs, got {sorted(outputs)}"
        )
    if outputs["value"].shape != (1,):
        raise ConfigError(
            f"model.network: {name!r}: expected value [B], got {list(outputs['value'].shape)} for "
            "one observation"
        )


def _tensors(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _tensors(leaf) for name, leaf in value.items()}
    return torch.as_tensor(value)
