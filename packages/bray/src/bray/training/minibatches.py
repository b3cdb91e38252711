"""Minibatches of an epoch: every sample once, none left over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor


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
