"""Arguments of a trainer: one object or several by name, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from bray_core.errors import ConfigError
from bray_trainer.config import TrainerConfig
from bray_trainer.distributed.ranks import Ranks

UNNAMED = ""
"""Name of a module, buffer or model that is the only one of its kind."""


def as_mapping(value: Any) -> dict[str, Any]:
    """Return one object, or several by name, as a dict; None is an empty dict."""
    if value is None:
        return {}
    return dict(value) if isinstance(value, Mapping) else {UNNAMED: value}


def as_module(module: nn.Module | Mapping[str, nn.Module]) -> nn.Module:
    """Return one module; several become an `nn.ModuleDict`."""
    if isinstance(module, nn.Module):
        return module
    try:
        return nn.ModuleDict(module)
    except KeyError as error:
        raise ConfigError(f"module: {error.args[0]}: choose another name") from error


def set_training(module: nn.Module, is_training: bool) -> None:
    """Switch modules to training or back; one of several that is frozen stays in evaluation."""
    module.train(is_training)
    if is_training and isinstance(module, nn.ModuleDict):
        for child in module.values():
            parameters = list(child.parameters())
            if parameters and not any(p.requires_grad for p in parameters):
                child.eval()


def as_buffers(buffer: Any, ranks: Ranks, config: TrainerConfig) -> dict[str, Any]:
    """Return the buffers by name; a buffer with `shard` gives this rank's share.

    Raises:
        ConfigError: a buffer shall be in the checkpoints, but has no `save`.
    """
    buffers = as_mapping(buffer)
    for value in buffers.values() if config.checkpoint_buffers else ():
        if not hasattr(value, "save"):
            kind = type(value).__name__
            raise ConfigError(f"checkpoint_buffers: expected buffers with `save`, got a {kind}")
    if ranks.size == 1:
        return buffers
    return {
        name: value.shard(ranks.rank, ranks.size) if hasattr(value, "shard") else value
        for name, value in buffers.items()
    }


def check_kinds(module: object, buffer: object, model: object) -> None:
    """Raise ConfigError if one of a trainer's arguments is of another kind."""
    names = list(as_mapping(module))
    for name in as_mapping(model):
        if name not in names:
            among = f"those of the modules {names}" if UNNAMED not in names else "none: one module"
            raise ConfigError(f"model: expected names among {among}, got {name!r}")
    for value in as_mapping(module).values():
        _check("module", value, isinstance(value, nn.Module), "a torch.nn.Module")
    for value in as_mapping(buffer).values():
        _check("buffer", value, hasattr(value, "pop"), "a buffer with `pop`")
    for value in as_mapping(model).values():
        _check("model", value, hasattr(value, "publish"), "a model with `publish`")


def check_optimizers(optimizers: object, module: nn.Module) -> None:
    """Raise ConfigError if what `make_optimizer` returned would not move the module.

    Args:
        optimizers: one optimiser, or several by name.
        module: the module that is trained.
    """
    named = as_mapping(optimizers)
    for name, value in named.items():
        place = f"make_optimizer: {name}" if name else "make_optimizer"
        _check(place, value, isinstance(value, Optimizer), "a torch.optim.Optimizer")
    own = {id(p) for p in module.parameters() if p.requires_grad}
    given = {id(p) for o in named.values() for group in o.param_groups for p in group["params"]}
    if own and not own & given:
        got = "one of other parameters" if named else repr(optimizers)
        raise ConfigError(
            f"make_optimizer: expected an optimiser of `self.module.parameters()`, got {got}: "
            "nothing would be trained"
        )


def _check(name: str, value: object, fits: bool, expected: str) -> None:
    if not fits:
        raise ConfigError(f"{name}: expected {expected}, got {type(value).__name__}")


def as_device(name: str) -> torch.device:
    """Return the device of that name.

    Raises:
        ConfigError: torch knows no device of that name, or it is absent.
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device: {name!r} is none of torch's: {error}") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device: got {name!r}, but torch finds {torch.cuda.device_count()} CUDA devices: "
            "choose 'cpu'"
        )
    return device
