"""Packed batches on the device: one transfer of the whole block, leaves viewed there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bray_core import nested
from bray_core.errors import SpecError
from bray_core.layout import Field, Packed

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


def to_torch(packed: Packed, device: torch.device | str = "cpu") -> Any:
    """Return the leaves of blocks `[B, nbytes]` as tensors `[B, *shape]` on `device`.

    On the CPU nothing is copied: the tensors share the block's memory, unless that is read-only,
    which tensors cannot be. Elsewhere the block is transferred once and the leaves are views of
    it there.

    Raises:
        SpecError: a leaf has a dtype that torch does not have.
    """
    block = packed.block if packed.block.flags.writeable else packed.block.copy()
    moved = torch.from_numpy(block).to(device, non_blocking=True)
    leaves = [_view(moved, field) for field in packed.layout.fields]
    return nested.unflatten(packed.layout.spec, leaves)


def _view(block: Tensor, field: Field) -> Tensor:
    dtype = _DTYPES.get(field.dtype.str)
    if dtype is None:
        raise SpecError(f"{field.path}: torch has no dtype {field.dtype}")
    raw = block[..., field.offset : field.offset + field.nbytes]
    return raw.view(dtype).view((*block.shape[:-1], *field.shape))
