"""Packed batches on the device: one transfer of the whole block, leaves viewed there."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bray_core import nested
from bray_core.errors import SpecError
from bray_core.layout import Field, Packed
from bray_trainer.reporting.loop_timer import LoopTimer, timing_event

_DTYPES = {
    "|b1": torch.bool,
    "|i1": torch.int8,
    "<i2": torch.int16,
    "<i4": torch.int32,
    "<i8": torch.int64,
    "|u1": torch.uint8,
    "<u2": torch.uint16,
    "<u4": torch.uint32,
    "<u8": torch.uint64,
    "<f2": torch.float16,
    "<f4": torch.float32,
    "<f8": torch.float64,
    "<c8": torch.complex64,
    "<c16": torch.complex128,
}


def to_torch(
    packed: Packed, device: torch.device | str = "cpu", *, time_major: Collection[str] = ()
) -> Any:
    """Return the leaves of blocks `[B, nbytes]` as tensors `[B, *shape]` on `device`.

    On the CPU nothing is copied: the tensors share the block's memory, unless that is read-only,
    which tensors cannot be. Elsewhere the block is transferred once, or not again if the trainer
    has done so already, and the leaves are views of it there.

    Args:
        packed: Packed batch whose leaves are returned.
        device: Device of the tensors.
        time_major: Names of top-level leaves `[B, T, …]` that are returned as views `[T, B, …]`.

    Raises:
        SpecError: torch lacks a leaf's dtype, or a name of `time_major` is no leaf.
    """
    block = _block_on(packed, torch.device(device))
    tree = nested.unflatten(
        packed.layout.spec, [_view(block, field) for field in packed.layout.fields]
    )
    for name in time_major:
        if not isinstance(tree, dict) or name not in tree:
            raise SpecError(f"time_major: no leaf {name!r}: expected some of {list(tree)}")
        tree[name] = nested.map(lambda leaf: leaf.transpose(0, 1), tree[name])
    return tree


def _block_on(packed: Packed, device: torch.device) -> Tensor:
    if isinstance(packed, TransferredBatch) and device in (
        packed.moved.device,
        torch.device("cuda"),
    ):
        return packed.arrived()
    block = packed.block if packed.block.flags.writeable else packed.block.copy()
    return torch.from_numpy(block).to(device, non_blocking=True)


def _view(block: Tensor, field: Field) -> Tensor:
    dtype = _DTYPES.get(field.dtype.str)
    if dtype is None:
        raise SpecError(f"{field.path}: torch has no dtype {field.dtype}")
    raw = block[..., field.offset : field.offset + field.nbytes]
    return raw.view(dtype).view((*block.shape[:-1], *field.shape))


@dataclass(frozen=True, slots=True)
class TransferredBatch(Packed):
    """A batch whose block is on its way to a GPU, or there."""

    moved: Tensor
    done: torch.cuda.Event

    def arrived(self) -> Tensor:
        """Return the block there, `[B, nbytes]`; the current stream waits for it, not the CPU."""
        stream = torch.cuda.current_stream(self.moved.device)
        stream.wait_event(self.done)
        self.moved.record_stream(stream)  # its memory is of the other stream's pool
        return self.moved


def side_stream(device: torch.device) -> torch.cuda.Stream | None:
    """Return a new CUDA stream beside those of others; None where the device is none of CUDA."""
    if device.type != "cuda":
        return None
    stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return stream


class DeviceTransfer:
    """Copies batches to a GPU on a CUDA stream of its own, from pinned memory.

    Args:
        device: Device that batches are brought to; on the CPU nothing is copied.
        timer: Timer that the seconds of the transfers are added to.
    """

    def __init__(self, device: torch.device, timer: LoopTimer) -> None:
        self._device = device
        self._timer = timer
        self._stream = side_stream(device)

    def start(self, packed: Packed) -> Packed:
        """Begin to copy a batch; `to_torch` of what is returned waits for it."""
        if self._stream is None:
            return packed
        # torch's cache of pinned memory reuses it only after the copy has left it.
        pinned = torch.empty(packed.block.shape, dtype=torch.uint8, pin_memory=True)
        _fill(pinned, packed.block)
        start, done = timing_event(), timing_event()
        with torch.cuda.stream(self._stream):
            start.record()
            moved = pinned.to(self._device, non_blocking=True)
            done.record()
        self._timer.add_events("transfer", start, done)
        return TransferredBatch(packed.layout, packed.block, moved, done)


def _fill(pinned: Tensor, block: npt.NDArray[np.uint8]) -> None:
    """Copy a block there by all of torch's threads: one moves less than a GPU takes in."""
    torch.get_num_threads()  # a thread keeps to `set_num_threads` only once it has asked
    if block.flags.writeable:
        pinned.copy_(torch.from_numpy(block))
    else:  # torch warns of it
        pinned.numpy()[...] = block
