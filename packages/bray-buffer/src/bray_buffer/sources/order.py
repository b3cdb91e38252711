"""The order in which a source's units are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count

import numpy as np
import numpy.typing as npt

from bray_buffer.sources.assembly import Cursor
from bray_buffer.sources.config import SourceConfig
from bray_buffer.sources.reading import Read
from bray_buffer.sources.source import Source


def unit_order(num_units: int, config: SourceConfig, epoch: int) -> npt.NDArray[np.int64]:
    """Return the numbers of all units in the order of an epoch, the same on all ranks."""
    if not config.shuffle:
        return np.arange(num_units)
    return np.random.default_rng([config.seed, epoch]).permutation(num_units)


def unit_jobs(
    source: Source,
    config: SourceConfig,
    shard: tuple[int, int],
    cursor: Cursor,
    read: Callable[[int, Sequence[int], bool], Read],
) -> Iterator[Callable[[], Read]]:
    """Yield the reads of a rank's units from a cursor on, epoch after epoch.

    Args:
        source: what is read.
        config: epochs, shuffling.
        shard: rank and number of ranks; each gets every size-th unit of the order.
        cursor: where to begin.
        read: number of the read in its epoch, units, whether it is the epoch's last → result.
    """
    rank, size = shard
    step, first = source.units_per_read, cursor.read
    for epoch in count(cursor.epoch):
        if config.epochs is not None and epoch >= config.epochs:
            return
        order = unit_order(source.num_units, config, epoch)[rank::size].tolist()
        num_reads = -(-len(order) // step)
        for number in range(first, num_reads):
            units = order[number * step : (number + 1) * step]
            yield partial(read, number, units, number == num_reads - 1)
        if first >= num_reads:  # nothing is left of the epoch but its end
            yield partial(read, first, (), True)
        first = 0
