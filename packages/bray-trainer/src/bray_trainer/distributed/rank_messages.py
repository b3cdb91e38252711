"""Messages between ranks: plain values as bytes, and kinds of tensors in words.

Plain values are tensors, numbers, strings, and dicts, lists and tuples of them.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bray_core.errors import SpecError


def encode_message(value: Any) -> Tensor:
    """Return a plain value as uint8 `[n]`."""
    file = io.BytesIO()
    torch.save(value, file)
    return torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)


def decode_message(block: Tensor) -> Any:
    """Return what `encode_message` was given. No code of the message runs."""
    file = io.BytesIO(block.numpy().tobytes())
    return torch.load(file, map_location="cpu", weights_only=True)


def tensor_kind(tensor: Tensor) -> str:
    """Return dtype and shape in words."""
    return f"{tensor.dtype} {tuple(tensor.shape)}"


def check_same_tensors(kinds: Mapping[str, str], first: Mapping[str, str], rank: int) -> None:
    """Raise SpecError if a rank has tensors of other names or kinds than rank 0."""
    if list(kinds.items()) == list(first.items()):
        return
    names = [n for n in {**first, **kinds} if kinds.get(n) != first.get(n)] or ["the order"]
    raise SpecError(
        f"module: {names[0]}: rank {rank} has {kinds.get(names[0])}, rank 0 has "
        f"{first.get(names[0])}: all ranks must make the same module"
    )
