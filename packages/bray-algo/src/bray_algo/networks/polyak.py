"""Target networks: soft updates by Polyak averaging."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class TargetUpdate:
    """Moves a target network towards the network that it follows, whose tensors it finds once.

    For what is done at each step: `polyak_` does the same and looks for the tensors each time.
    Parameters that lie side by side in memory in both networks are moved as one tensor.

    Args:
        target: Network that follows.
        source: Network that learns, with the same parameters and buffers by name. Neither may be
            given other tensors afterwards.

    Raises:
        ValueError: the networks' names or shapes differ.
    """

    def __init__(self, target: nn.Module, source: nn.Module) -> None:
        pairs = _pairs(dict(target.named_parameters()), dict(source.named_parameters()))
        self._parameters = _joined(*pairs)
        # What is not saved, such as noise, is the target's own.
        self._buffers = _pairs(_saved(target), _saved(source))

    @torch.no_grad()
    def __call__(self, tau: float) -> None:
        """Move the parameters by a share τ of the way; see `polyak_`.

        Raises:
            ValueError: τ is out of range.
        """
        if not 0.0 < tau <= 1.0:
            raise ValueError(f"tau: expected above 0 to 1, got {tau}")
        followers, leaders = self._parameters
        if tau == 1.0:  # lerp would carry a target's NaN on
            torch._foreach_copy_(followers, leaders)
        elif followers:
            torch._foreach_lerp_(followers, leaders, tau)
        for follower, leader in zip(*self._buffers, strict=True):
            follower.copy_(leader)


def polyak_(target: nn.Module, source: nn.Module, tau: float) -> None:
    """Move the target's parameters towards the source's, in place: θ' ← (1 − τ) θ' + τ θ.

    Lillicrap et al. 2016, "Continuous control with deep reinforcement learning", Algorithm 1.
    Saved buffers (such as running statistics) are copied: their average means nothing. Others
    (such as the noise of `NoisyLinear`) are left alone.

    Args:
        target: Network that follows.
        source: Network that learns, with the same parameters and buffers by name.
        tau: Share τ of the way, above 0 to 1; usually 0.001 to 0.02, and 1 copies. Too large lets
            values chase themselves and diverge; too small learns from old values.

    Raises:
        ValueError: τ is out of range, or the networks' names or shapes differ.
    """
    TargetUpdate(target, source)(tau)


def _saved(network: nn.Module) -> dict[str, Tensor]:
    names = network.state_dict().keys()
    return {name: buffer for name, buffer in network.named_buffers() if name in names}


def _pairs(
    target: dict[str, Tensor], source: dict[str, Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """Return both networks' tensors in one order, checked to agree."""
    if target.keys() != source.keys():
        names = sorted(target.keys() ^ source.keys())
        raise ValueError(f"target, source: expected the same tensors, got {names} in one alone")
    for name, tensor in target.items():
        if tensor.shape != source[name].shape:
            raise ValueError(
                f"{name}: expected shape {tuple(source[name].shape)} in the target, "
                f"got {tuple(tensor.shape)}"
            )
    return list(target.values()), [source[name] for name in target]


def _joined(followers: list[Tensor], leaders: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Return both lists with tensors in the place of those that lie side by side in both."""
    runs: list[list[tuple[Tensor, Tensor]]] = []
    for pair in zip(followers, leaders, strict=True):
        if runs and all(map(_follows, pair, runs[-1][-1])):
            runs[-1].append(pair)
        else:
            runs.append([pair])
    sides = [list(zip(*run, strict=True)) for run in runs]
    return [_one(side[0]) for side in sides], [_one(side[1]) for side in sides]


def _follows(tensor: Tensor, before: Tensor) -> bool:
    """Return whether a tensor begins where another one ends, in the same memory."""
    is_dense = tensor.is_contiguous() and before.is_contiguous()
    is_alike = tensor.dtype == before.dtype and tensor.device.type == before.device.type == "cpu"
    if not is_dense or not is_alike:
        return False
    is_shared = tensor.untyped_storage().data_ptr() == before.untyped_storage().data_ptr()
    return is_shared and tensor.data_ptr() == before.data_ptr() + before.nbytes


def _one(run: Sequence[Tensor]) -> Tensor:
    """Return the numbers of tensors that lie side by side as one tensor."""
    if len(run) == 1:
        return run[0]
    first = run[0].detach()
    count = sum(tensor.numel() for tensor in run)
    return first.as_strided((count,), (1,), first.storage_offset())
