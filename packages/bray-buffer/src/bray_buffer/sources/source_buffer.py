"""Batches of a source's samples, through the methods of a buffer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import asdict
from itertools import repeat
from typing import Any

from bray_buffer.iterable_buffer import IterableBuffer
from bray_buffer.segment_rows import as_layout
from bray_buffer.sources.batch_assembler import BatchAssembler, SamplePosition
from bray_buffer.sources.python_objects import Samples, as_source, first_layout
from bray_buffer.sources.read_jobs import unit_jobs
from bray_buffer.sources.reading import (
    ReadAhead,
    SourceRead,
    StreamReader,
    make_executor,
    reader,
)
from bray_buffer.sources.source import Source
from bray_buffer.sources.source_config import SourceConfig
from bray_buffer.transform import Transform
from bray_buffer.waitable_lock import WaitableLock
from bray_core import metrics
from bray_core.errors import ClosedError, ConfigError, DeadlineError, SpecError
from bray_core.layout import Block, Layout, Packed
from bray_core.nested import Nested


class SourceBuffer(IterableBuffer):
    """Reads a source and gives its samples in batches. Thread-safe.

    The order is that of the seed, however many workers read ahead. After the last epoch `pop`
    raises ClosedError, so that iteration ends.

    Args:
        source: A `Source` or a `Stream`; a sequence of samples; an iterable of samples, for one
            epoch; or a callable that returns a new iterator for each epoch. A sample is a nested
            array.
        config: Settings: batch size, epochs, shuffling, workers.
        layout: Packed layout of a sample, or its spec; by default that of the first sample.
        transform: Function that every batch goes through, leaves `[B, …]` → `[B', …]`; see
            `bray_buffer.transform`.

    Raises:
        ConfigError: the source is of another kind, or cannot be read for so many epochs or in
            processes.
        SpecError: the first sample cannot be read.

    Examples:
        >>> import numpy as np
        >>> samples = [{"x": np.float32(number)} for number in range(5)]
        >>> source = SourceBuffer(samples, SourceConfig(batch_size=2))
        >>> [batch.tree["x"].tolist() for batch in source]
        [[0.0, 1.0], [2.0, 3.0], [4.0]]
    """

    def __init__(
        self,
        source: Samples,
        config: SourceConfig,
        *,
        layout: Layout | Nested | None = None,
        transform: Callable[[Nested], Nested] | None = None,
    ) -> None:
        self._source = as_source(source)
        self._config = config
        self._check_config()
        self._layout = first_layout(self._source) if layout is None else as_layout(layout)
        self._function = transform
        self._transform = transform and Transform(transform, self._layout)
        self._shard = (0, 1)
        self._skipped = 0
        self._idle_epochs = 0
        """Epochs since the last batch."""
        self._lock = WaitableLock("source")
        self._executor: Executor | None = None
        self._reads: ReadAhead | None = None
        self._failure: SpecError | None = None
        self._assembler = self._make_assembler(SamplePosition())

    def _check_config(self) -> None:
        source, config = self._source, self._config
        if not isinstance(source, Source):
            if config.workers == "processes":
                raise ConfigError(
                    "workers: a stream cannot be read by several processes: expected 'threads', "
                    "got 'processes'"
                )
            if config.epochs != 1 and not source.is_repeatable:
                raise ConfigError(
                    f"epochs: an iterator can be read once, got epochs={config.epochs}: give a "
                    "callable that returns a new one"
                )

    def _make_assembler(self, position: SamplePosition) -> BatchAssembler:
        by_order = isinstance(self._source, Source) and self._source.is_shuffled_by_order
        window = self._config.shuffle_size if self._config.shuffle and not by_order else 1
        return BatchAssembler(self._config, window, position)

    @property
    def layout(self) -> Layout:
        """The packed layout of one sample."""
        return self._layout

    @property
    def batch_layout(self) -> Layout:
        """The packed layout of a batch's rows: of a sample, transformed."""
        return self._transform.layout if self._transform else self._layout

    def shard(self, rank: int, size: int) -> SourceBuffer:
        """Return a buffer of one rank's share, at its beginning.

        The shares of all ranks have no sample in common and together are all samples. Ranks get
        whole units in turn (samples of a sequence, row groups, files, episodes), so that their
        shares differ by one unit at most; of a stream every `size`-th sample.
        """
        if not 0 <= rank < size:
            raise ConfigError(f"rank: expected 0 to {size - 1} of size={size}, got {rank}")
        # A new buffer rather than a copy: the shares have executors of their own.
        share = SourceBuffer(
            self._source, self._config, layout=self._layout, transform=self._function
        )
        share._shard = (rank, size)
        return share

    def push(
        self, *segments: Packed | Nested, wait: bool = False, timeout_s: float | None = None
    ) -> int:
        """Refuse: a source is read only."""
        raise ConfigError("source: nothing can be pushed to a source: it is read only")

    def pop(self, timeout_s: float | None = None) -> Packed:
        """Return the next batch `[B, nbytes]`; an epoch's last may be shorter.

        Raises:
            DeadlineError: no batch within `timeout_s`.
            ClosedError: all epochs were given, or the buffer was closed.
            SpecError: a sample cannot be read (the message names its file and row), or the
                transform failed.
            WorkerLostError: a process that reads died.
        """
        return self._finish(self._lock.wait_for(self._take, timeout_s), timeout_s)

    async def pop_async(self, timeout_s: float | None = None) -> Packed:
        """`pop` for a coroutine; with `num_workers=0` the event loop waits for the reading."""
        return self._finish(await self._lock.wait_for_async(self._take, timeout_s), timeout_s)

    def _finish(self, block: Block | None, timeout_s: float | None) -> Packed:
        if block is None:
            raise DeadlineError(
                f"source: no batch within {timeout_s:g} s: its workers are still reading"
            )
        return Packed(self.batch_layout, self._transform(block) if self._transform else block)

    def _take(self) -> Block | None:
        if self._failure:
            raise self._failure
        if self._reads is None:
            self._reads = self._begin_reading(self._assembler.position)
        while (block := self._assembler.take()) is None:
            read = self._reads.take()
            if read is not None:
                self._add(read)
            elif self._reads.is_exhausted:
                self._stop_reading()
                raise ClosedError(f"source: exhausted after {self._config.epochs} epochs")
            else:
                return None
        self._idle_epochs = 0
        return block

    def _add(self, read: SourceRead) -> None:
        for error in read.errors:
            if self._config.on_error == "raise":
                self._failure = SpecError(error)
                self._stop_reading()
                raise self._failure
            self._skipped += 1
            metrics.record("buffer/skipped_samples", 1, kind="count")
        self._assembler.add(read)
        self._idle_epochs += read.ends_epoch
        if self._config.epochs is None and self._idle_epochs > 2:
            why, source = "there is no sample in it", self._source
            if isinstance(source, Source) and source.num_units:
                why = f"there is no sample from {source.describe(0)} on"
            if self._config.drop_last:
                why = f"there are fewer samples than batch_size={self._config.batch_size}"
            raise SpecError(f"source: a whole epoch gave no batch: {why}")

    def _begin_reading(self, position: SamplePosition) -> ReadAhead:
        source, config = self._source, self._config
        units = source if isinstance(source, Source) else None
        self._executor = make_executor(config.workers, config.num_workers, units, self._layout)
        jobs: Iterator[Callable[[], SourceRead | None]]
        if isinstance(source, Source):
            read = reader(source, self._layout, self._executor)
            jobs = unit_jobs(source, config, self._shard, position, read)
        else:
            place = (position.epoch, position.read, config.epochs)
            jobs = repeat(StreamReader(source, self._layout, self._shard, *place).read)
        return ReadAhead(jobs, self._executor, max(1, 2 * config.num_workers), self._wake)

    def _wake(self) -> None:
        with self._lock.mutex:
            self._lock.notify()

    def _stop_reading(self) -> None:
        if self._reads is not None:
            self._reads.cancel()
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None

    def progress(self) -> dict[str, float]:
        """Return the `epoch` at hand, all `samples` given, and the `fraction` of the epoch.

        The fraction is NaN for a stream, whose end nobody knows.
        """
        with self._lock.mutex:
            position = self._assembler.position
        return {
            "epoch": position.epoch,
            "samples": position.samples,
            "fraction": self._fraction(position),
        }

    def _fraction(self, position: SamplePosition) -> float:
        source, (rank, size) = self._source, self._shard
        if not isinstance(source, Source):
            return float("nan")
        units = len(range(rank, source.num_units, size))
        given = position.read * source.units_per_read
        if source.is_shuffled_by_order:  # a unit is a sample
            given += position.row + position.taken
        return min(1.0, given / units) if units else 1.0

    def stats(self) -> dict[str, float]:
        """Return the samples given (`popped`) and those `skipped` since they cannot be read."""
        with self._lock.mutex:
            return {"popped": self._assembler.position.samples, "skipped": self._skipped}

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the next sample, and the order that it is in."""
        with self._lock.mutex:
            return {"cursor": asdict(self._assembler.position), "order": self._order()}

    def _order(self) -> dict[str, Any]:
        """Return all that the order of samples depends on."""
        config = self._config
        return {
            "shuffle": config.shuffle,
            "shuffle_size": config.shuffle_size,
            "seed": config.seed,
            "shard": list(self._shard),
            "num_units": self._source.num_units if isinstance(self._source, Source) else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with exactly the sample that would have come next.

        Raises:
            SpecError: the state is not of a source, or of another order of samples.
        """
        position = SamplePosition.from_dict(state.get("cursor"))
        for name, value in self._order().items():
            got = state.get("order", {}).get(name)
            if got != value:
                raise SpecError(
                    f"source: cannot go on from another order of samples: expected {name}={value}, "
                    f"got {got}"
                )
        with self._lock.mutex:
            self._stop_reading()
            self._reads = self._failure = None
            self._assembler = self._make_assembler(position)

    def close(self) -> None:
        """Wake every waiter with ClosedError and read no more.

        What a worker reads at the moment it still reads, but nobody waits for it.
        """
        self._lock.close()
        with self._lock.mutex:
            self._stop_reading()
