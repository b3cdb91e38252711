"""Minibatches of an epoch: every sample once, none left over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from bray_core import nested
from bray_trainer.sequences import Batch, select_steps

_AT_ONCE_BYTES = 2**24
"""Size up to which rows are put in order all at once, which copies all of them."""


def shuffled_order(count: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """Return the numbers of `count` rows in an order drawn on the CPU, `[count]`, on a device.

    A GPU would else wait for a copy whenever rows are chosen by a part of it.
    """
    return torch.randperm(count, generator=generator).to(device)


def minibatches(order: Tensor, steps: Sequence[int], size: int) -> Iterator[Tensor]:
    """Yield the parts of a shuffled order, each of at most `size` steps.

    Rows of one step each are shared out evenly, so that no minibatch is a small rest. Segments of
    several join until the next one would be too much; one that is longer than `size` is alone.

    Args:
        order: numbers of the rows, `[N]`.
        steps: valid steps of each row, by its number; N of them, one or more.
        size: steps of a minibatch, at most.
    """
    counts = [steps[row] for row in order.tolist()]
    if max(counts) == 1:
        yield from order.tensor_split(-(-len(counts) // size))
        return
    begin, total = 0, 0
    for at, count in enumerate(counts):
        if total and total + count > size:
            yield order[begin:at]
            begin, total = at, 0
        total += count
    yield order[begin:]


def even_sizes(count: int, size: int) -> list[int]:
    """Return how many of `count` rows each minibatch has: at most `size`, shared out evenly."""
    parts = -(-count // size)
    least, more = divmod(count, parts)
    return [least + 1] * more + [least] * (parts - more)


def epochs_at_once(rows: Batch, epochs: int) -> int:
    """Return of how many epochs `shuffled` may order the rows in one copy; one at the least."""
    return max(1, min(epochs, (_AT_ONCE_BYTES - 1) // max(1, _num_bytes(rows))))


def shuffled(rows: Batch, orders: Sequence[Tensor], size: int) -> Iterator[Batch]:
    """Yield the minibatches of some epochs, at most `size` rows each, shared out evenly.

    Small rows are put in order all at once, as fetching each minibatch takes longer than the copy:
    the minibatches are then views.

    Args:
        rows: leaves `[N, …]`.
        orders: numbers of the rows in the shuffled order of each epoch, `[N]`.
        size: rows of a minibatch, at most.
    """
    order, sizes = torch.cat(list(orders)), even_sizes(len(orders[0]), size) * len(orders)
    if _num_bytes(rows) * len(orders) >= _AT_ONCE_BYTES:
        yield from (select_steps(rows, part) for part in torch.split(order, sizes))
        return
    ordered = select_steps(rows, order)
    flat = nested.flatten(ordered)
    split = [torch.split(leaf, sizes) for leaf in flat.values()]
    if flat.keys() == ordered.keys():  # nothing nested: putting it together takes a third
        yield from (dict(zip(flat, leaves, strict=True)) for leaves in zip(*split, strict=True))
        return
    yield from (nested.unflatten(ordered, leaves) for leaves in zip(*split, strict=True))


def _num_bytes(rows: Batch) -> int:
    """Return the size of all rows; leaves that are not of memory alone are many bytes."""
    leaves = nested.flatten(rows).values()
    return sum(getattr(leaf, "nbytes", _AT_ONCE_BYTES) for leaf in leaves)
