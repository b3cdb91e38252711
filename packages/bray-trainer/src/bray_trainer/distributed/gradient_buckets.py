"""Gradients of one step, averaged over the ranks in flat blocks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bray_core.errors import SpecError
from bray_trainer.distributed.process_group import ProcessGroup

_BUCKET_BYTES = 25 * 1024 * 1024
"""Large enough for the full bandwidth, small enough that packing one hides behind another."""
_HALVES = (torch.float16, torch.bfloat16)


class GradientBucket:
    """One flat block, and a view of it for each of its parameters.

    Args:
        parameters: Parameters of one device and one dtype.
        num_heads: Number of scalars at the front of the block.
    """

    def __init__(self, parameters: Sequence[Tensor], num_heads: int) -> None:
        first = parameters[0]
        dtype = torch.float32 if first.dtype in _HALVES else first.dtype
        sizes = [num_heads, *(parameter.numel() for parameter in parameters)]
        self.flat = torch.zeros(sum(sizes), dtype=dtype, device=first.device)
        self.heads, *views = torch.split(self.flat, sizes)
        self._pairs = [
            (parameter, view.view(parameter.shape))
            for parameter, view in zip(parameters, views, strict=True)
        ]

    def pack(self, weight: float) -> None:
        """Copy the gradients, times `weight`, into the block; zeros where there is none."""
        for parameter, view in self._pairs:
            if parameter.grad is None or not weight:  # 0 x nan is nan
                view.zero_()
            elif parameter.grad.is_sparse:
                raise SpecError(
                    f"gradients: got a sparse one of shape {tuple(parameter.shape)}, expected "
                    "dense ones with several ranks: use Embedding(…, sparse=False)"
                )
            elif parameter.grad.dtype == view.dtype:
                torch.mul(parameter.grad, weight, out=view)
            else:
                view.copy_(parameter.grad).mul_(weight)

    def unpack(self, total: Tensor, unused: set[int]) -> None:
        """Replace the gradients by those of the block, divided by `total`."""
        for parameter, view in self._pairs:
            if id(parameter) in unused:
                continue
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            if parameter.grad.dtype == view.dtype:
                torch.div(view, total, out=parameter.grad)
            else:
                parameter.grad.copy_(view / total)


class GradientBuckets:
    """The buckets of a list of parameters, the same on every rank.

    Args:
        parameters: Parameters in the same order on every rank.
        bucket_bytes: Size at which a bucket is full and the next one begins.
    """

    def __init__(self, parameters: Sequence[Tensor], bucket_bytes: int = _BUCKET_BYTES) -> None:
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        groups = _groups(self._parameters, bucket_bytes)
        # The first bucket's heads: the weight, then 1 for each parameter that has a gradient.
        heads = [1 + len(self._parameters), *(0 for _ in groups[1:])]
        self._buckets = [GradientBucket(group, n) for group, n in zip(groups, heads, strict=True)]

    def average(self, group: ProcessGroup, weight: float) -> float:
        """Replace each gradient by its weighted mean over the ranks; return the sum of weights.

        A parameter that has no gradient on one rank counts as zeros there; one that has none on
        any rank stays without. All is summed in float32 or wider.
        """
        used = [float(bool(weight) and p.grad is not None) for p in self._parameters]
        head = self._buckets[0].heads
        head.copy_(torch.tensor([weight, *used], dtype=head.dtype))
        works = []
        for bucket in self._buckets:  # the next is packed while this one travels
            bucket.pack(weight)
            works.append(group.start_all_reduce(bucket.flat))
        group.finish(works[0])
        total = head[0].clone()
        if not float(total):
            for work in works[1:]:
                group.finish(work)
            return 0.0
        unused = self._unused(head) if 0.0 in used else set()
        for bucket, work in zip(self._buckets, works, strict=True):
            if work is not works[0]:
                group.finish(work)
            bucket.unpack(total, unused)
        return float(total)

    def _unused(self, head: Tensor) -> set[int]:
        counts = head[1:].tolist()
        return {id(p) for p, count in zip(self._parameters, counts, strict=True) if not count}


def _groups(parameters: Sequence[Tensor], bucket_bytes: int) -> list[list[Tensor]]:
    """Split parameters by device and dtype, then by size; the last first, as backward ends."""
    by_kind: dict[tuple[torch.device, torch.dtype], list[list[Tensor]]] = {}
    for parameter in parameters:
        groups = by_kind.setdefault((parameter.device, parameter.dtype), [[]])
        if sum(p.nbytes for p in groups[-1]) + parameter.nbytes > bucket_bytes and groups[-1]:
            groups.append([])
        groups[-1].append(parameter)
    return [group for groups in by_kind.values() for group in groups]
