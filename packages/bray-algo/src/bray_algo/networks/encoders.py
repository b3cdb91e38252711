"""Encoders of an observation's numbers: classes, bits, positions, embeddings.

All take tensors of any shape and add one axis of features at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bray_algo.validation.scalars import check_positive
from bray_algo.validation.switch import is_validated
from bray_algo.validation.tensors import check_tensor


def one_hot(index: Tensor, num_classes: int) -> Tensor:
    """Return `[…, num_classes]` float32: one at the index, zeros elsewhere.

    Args:
        index: Classes, integers `[…]`, 0 to num_classes − 1.
        num_classes: Number of classes.

    Raises:
        ValueError: not integers, no class, or an index out of range. Unseen, where values are not
            checked (`validation`), that gives zeros only.
    """
    _check_integers("index", index)
    if num_classes < 1:
        raise ValueError(f"num_classes: expected a positive number, got {num_classes}")
    index = index.long()  # 256 classes of bytes: no byte is 256
    _check_range("index", index, num_classes)
    classes = torch.arange(num_classes, device=index.device)
    return (index.unsqueeze(-1) == classes).to(torch.float32)


def binary(number: Tensor, num_bits: int) -> Tensor:
    """Return the bits of whole numbers `[…]`, `[…, num_bits]` float32, the lowest bit first.

    Args:
        number: Whole numbers `[…]`, 0 to 2^num_bits − 1.
        num_bits: Number of bits, 1 to 62.

    Raises:
        ValueError: not integers, bits out of range, or a number that needs more bits. Unseen, they
            are lost.
    """
    _check_integers("number", number)
    if not 1 <= num_bits <= 62:
        raise ValueError(f"num_bits: expected 1 to 62, got {num_bits}")
    number = number.long()
    _check_range("number", number, 2**num_bits)
    powers = torch.tensor([2**bit for bit in range(num_bits)], device=number.device)
    shifted = torch.div(number.unsqueeze(-1), powers, rounding_mode="floor")
    return torch.remainder(shifted, 2).to(torch.float32)


def sinusoidal(position: Tensor, size: int, longest: float = 10_000.0) -> Tensor:
    """Return sines and cosines of positions `[…]`, `[…, size]` float32.

    Vaswani et al. 2017, "Attention is all you need", §3.5: sin and cos of p / longest^(2i / size),
    here first all sines, then all cosines.

    Args:
        position: Numbers `[…]`, such as times, distances, coordinates.
        size: Number of features, even.
        longest: Length of the longest wave over 2π; usually 2 to 10 times the greatest position.
            Too short, and far positions look alike; too long, and many features hardly change.

    Raises:
        ValueError: the size is not even and positive, or the longest wave not positive.
    """
    check_tensor("position", position)
    check_positive("longest", longest)
    if size < 2 or size % 2:
        raise ValueError(f"size: expected an even positive number, got {size}")
    steps = torch.arange(0, size, 2, device=position.device, dtype=torch.float32)
    angle = position.to(torch.float32).unsqueeze(-1) * torch.exp(steps * -math.log(longest) / size)
    return torch.cat([torch.sin(angle), torch.cos(angle)], -1)


class Embeddings(nn.Module):
    """Learned vectors for K columns of classes, side by side.

    Args:
        num_classes: Number of classes of each column.
        size: Features of each column's vectors, usually 4 to 64.

    Raises:
        ValueError: no column, or a number that is not positive.

    Examples:
        >>> Embeddings([3, 7], size=4)(torch.tensor([[2, 6], [0, 0]])).shape
        torch.Size([2, 8])
    """

    def __init__(self, num_classes: Sequence[int], size: int) -> None:
        super().__init__()
        if min(num_classes, default=0) < 1 or size < 1:
            raise ValueError(
                f"num_classes, size: expected positive numbers, got {list(num_classes)}, {size}"
            )
        self.tables = nn.ModuleList(nn.Embedding(num, size) for num in num_classes)

    def forward(self, index: Tensor) -> Tensor:
        """Map integers `[…, K]` to `[…, K size]`.

        Raises:
            ValueError: not K columns of integers.
        """
        _check_integers("index", index)
        if index.ndim < 1 or index.shape[-1] != len(self.tables):
            raise ValueError(f"index: expected [..., {len(self.tables)}], got {tuple(index.shape)}")
        columns = [table(index[..., k].long()) for k, table in enumerate(self.tables)]
        return torch.cat(columns, -1)


def _check_integers(name: str, tensor: Tensor) -> None:
    check_tensor(name, tensor)
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        raise ValueError(f"{name}: expected integers, got {tensor.dtype}")


def _check_range(name: str, tensor: Tensor, end: int) -> None:
    if is_validated(tensor) and bool(((tensor < 0) | (tensor >= end)).any()):
        raise ValueError(
            f"{name}: expected 0 to {end - 1}, got {int(tensor.min())} to {int(tensor.max())}"
        )
