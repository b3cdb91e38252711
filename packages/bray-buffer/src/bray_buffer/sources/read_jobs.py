"""The order in which a source's units are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count

import numpy as np
import numpy.typing as npt

from bray_buffer.sources.batch_assembler import SamplePosition
from bray_buffer.sources.reading import SourceRead
from bray_buffer.sources.source import Source
from bray_buffer.sources.source_config import SourceConfig


def unit_order(num_units: int, config: SourceConfig, epoch: int) -> npt.NDArray[np.int64]:
    """Return the numbers of all units in the order of an epoch, the same on all ranks."""
    if not config.shuffle:
        return np.arange(num_units)
    return np.random.default_rng([config.seed, epoch]).permutation(num_units)


def unit_jobs(
    source: Source,
    config: SourceConfig,
    shard: tuple[int, int],
    position: SamplePosition,
    read: Callable[[int, Sequence[int], bool], SourceRead],
) -> Iterator[Callable[[], SourceRead]]:
    """Yield the reads of a rank's units from a position on, epoch after epoch.

    Args:
        source: Source of the samples.
        config: Settings: epochs, shuffling.
        shard: Rank and number of ranks; each gets every size-th unit of the order.
        position: Position to begin at.
        read: Function that reads units, given the number of the read in its epoch, the units, and
            whether it is the epoch's last.
    """
    rank, size = shard
    step, first = source.units_per_read, position.read
    for epoch in count(position.epoch):
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
