"""A module whose parameters are split over the ranks, by FSDP2 of torch.

Zhao et al. 2023, "PyTorch FSDP". Each rank keeps a part of every parameter, of its gradient and of
what the optimiser knows of it; the layers' parameters are gathered while they compute. What leaves
the trainer is whole: published weights and checkpoints are those of a module that was never split,
and resume with any number of ranks.

All ranks call the functions that gather: `whole`, `optimizer_state`, and passes of the module.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bray_core.errors import ConfigError
from bray_trainer.distributed.ranks import Ranks


def shard(module: nn.Module, ranks: Ranks) -> None:
    """Split a module's parameters over the ranks, in place, with the values of rank 0.

    The members of its outermost `nn.ModuleList`s, the layers of a transformer, are gathered one
    after the other; the rest is one more unit. Alone, nothing is split.

    Args:
        module: one module, whose `forward` is what is called. It cannot be copied any more.
        ranks: the ranks, which are connected.

    Raises:
        ConfigError: it is several modules.
    """
    if isinstance(module, nn.ModuleDict):
        raise ConfigError(f"shard: expected one module, got {len(module)} by name: leave it out")
    if ranks.size == 1:
        return
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    ranks.share(module.state_dict())
    device = next(module.parameters()).device.type
    mesh = init_device_mesh(device, (ranks.size,))
    for unit in [*_layers(module), module]:
        fully_shard(unit, mesh=mesh)
        assert isinstance(unit, FSDPModule), "fully_shard changes the class of what it is given"
        # A sum over the ranks: each loss is weighed by its share of all tokens beforehand.
        unit.set_gradient_divide_factor(1.0)
        unit.set_force_sum_reduction_for_comms(True)


def is_sharded(module: nn.Module) -> bool:
    """Return whether a module's parameters are split."""
    return any(_is_part(parameter) for parameter in module.parameters())


def whole(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return tensors with each that is split gathered from all ranks; others are as they were."""
    return {name: _gathered(value) for name, value in tensors.items()}


def load(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load whole tensors, of which each rank keeps its part.

    Args:
        module: a module, split or not.
        tensors: whole tensors by the names of its `state_dict`.
    """
    own = module.state_dict()
    module.load_state_dict(
        {n: _part_of(value, own[n]) if n in own else value for n, value in tensors.items()}
    )


def copy_parts(source: nn.Module, target: nn.Module) -> None:
    """Copy the weights of a module to another that is split alike."""
    own: dict[str, Any] = source.state_dict()
    with torch.no_grad():
        for name, value in target.state_dict().items():
            value.copy_(own[name])


def optimizer_state(optimizer: Optimizer) -> dict[str, Any]:
    """Return an optimiser's state with whole tensors."""
    state = optimizer.state_dict()
    return {**state, "state": {number: whole(known) for number, known in state["state"].items()}}


def split_optimizer_state(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """Return a state of whole tensors with each as the part that belongs to this rank.

    Args:
        optimizer: the optimiser that it is for.
        state: what `optimizer_state` returned, whatever the number of ranks was.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    parts = {
        number: {
            name: _part_of(value, parameters[number])
            if isinstance(value, Tensor) and value.shape == parameters[number].shape
            else value
            for name, value in known.items()
        }
        for number, known in state["state"].items()
    }
    return {**state, "state": parts}


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield from (layer for layer in child if any(True for _ in layer.parameters()))
        else:
            yield from _layers(child)


def _is_part(value: object) -> bool:
    return hasattr(value, "full_tensor")  # DTensor, whose import takes half a second


def _gathered(value: Any) -> Any:
    return value.full_tensor() if _is_part(value) else value


def _part_of(value: Tensor, own: Any) -> Tensor:
    """Return the part of a whole tensor that this rank has of `own`."""
    if not _is_part(own):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(
        value.to(own.device), own.device_mesh, own.placements, src_data_rank=None
    )
