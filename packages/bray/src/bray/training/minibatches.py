"""Minibatches of an epoch: every sample once, none left over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from bray_core import nested
from bray_trainer.sequences import Batch, select_steps

_AT_ONCE_BYTES = 2**24
"""Size up to which an epoch's rows are put in order all at once, which copies all of them."""


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


def shuffled(rows: Batch, order: Tensor, size: int) -> Iterator[Batch]:
    """Yield rows in a shuffled order, at most `size` at a time, shared out evenly.

    Small rows are put in order once an epoch, as fetching each minibatch takes longer than the
    copy: the minibatches are then views.

    Args:
        rows: leaves `[N, …]`.
        order: numbers of the rows, `[N]`.
        size: rows of a minibatch, at most.
    """
    parts = order.tensor_split(-(-len(order) // size))
    leaves = nested.flatten(rows).values()
    if sum(getattr(leaf, "nbytes", _AT_ONCE_BYTES) for leaf in leaves) >= _AT_ONCE_BYTES:
        yield from (select_steps(rows, part) for part in parts)
        return
    ordered = select_steps(rows, order)
    flat = nested.flatten(ordered)
    split = [leaf.tensor_split(len(parts)) for leaf in flat.values()]
    if flat.keys() == ordered.keys():  # nothing nested: putting it together takes a third
        yield from (dict(zip(flat, leaves, strict=True)) for leaves in zip(*split, strict=True))
        return
    yield from (nested.unflatten(ordered, leaves) for leaves in zip(*split, strict=True))
