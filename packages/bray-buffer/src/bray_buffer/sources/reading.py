"""Reading samples into packed blocks: in this thread, or ahead in threads or processes."""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from bray_buffer.sources.source import Source, Stream, stack
from bray_buffer.sources.source_config import Workers
from bray_core.errors import SpecError, WorkerLostError
from bray_core.layout import Block, Layout

_STREAM_ROWS = 64
"""Samples of a stream that are read at a time."""


@dataclass(frozen=True, slots=True)
class SourceRead:
    """The samples and errors of one read."""

    number: int
    """Number of the read in its epoch."""
    block: Block
    """Samples `[n, nbytes]`."""
    errors: tuple[str, ...] = ()
    """Messages of the samples that could not be read."""
    ends_epoch: bool = False


def read_units(
    source: Source, layout: Layout, number: int, units: Sequence[int], ends_epoch: bool
) -> SourceRead:
    """Read some units of a source."""
    blocks, errors = _read(source, layout, units)
    if errors and len(units) > 1:
        blocks, errors = [], []
        # Unit by unit now, to name the broken one and keep the others.
        for unit in units:
            good, bad = _read(source, layout, [unit])
            blocks += good
            errors += bad
    block = np.concatenate(blocks) if blocks else layout.empty(0)
    return SourceRead(number, block, tuple(errors), ends_epoch)


def _read(source: Source, layout: Layout, units: Sequence[int]) -> tuple[list[Block], list[str]]:
    """Return the samples of some units, and what is wrong with the others."""
    blocks, errors = [], []
    try:
        for rows in source.read(units) if units else ():
            if isinstance(rows, SpecError):
                errors.append(str(rows))
            else:
                blocks.append(layout.pack(rows))
    except Exception as error:  # noqa: BLE001  a user's code, or a broken file
        errors.append(_explain(source.describe(units[0]), error))
    return blocks, errors


def _explain(where: str, error: Exception) -> str:
    kind = "" if isinstance(error, SpecError) else f"{type(error).__name__}: "
    return f"{where}: {kind}{error}"


class StreamReader:
    """Reads a stream's samples, those of one rank, some at a time; one epoch after the other.

    Args:
        stream: Stream of the samples.
        layout: Packed layout of one sample.
        shard: Rank and number of ranks; each takes every size-th sample.
        epoch: Epoch of the first read.
        number: Number of the first read in its epoch.
        epochs: Number of epochs; None for no end.
    """

    def __init__(
        self,
        stream: Stream,
        layout: Layout,
        shard: tuple[int, int],
        epoch: int,
        number: int,
        epochs: int | None,
    ) -> None:
        self._stream = stream
        self._layout = layout
        self._rank, self._size = shard
        self._epoch, self._number, self._epochs = epoch, number, epochs
        self._samples: Iterator[Any] | None = None

    def read(self) -> SourceRead | None:
        """Read the next samples; None after the last epoch."""
        if self._epochs is not None and self._epoch >= self._epochs:
            return None
        samples: list[tuple[int, Any]] = []
        errors: list[str] = []
        number = self._number
        try:
            samples.extend(self._next_samples())
        except Exception as error:  # noqa: BLE001  a user's iterator, which is now at its end
            errors.append(_explain(f"stream, in read {number}", error))
        ends = len(samples) + len(errors) < _STREAM_ROWS
        block = self._pack(samples, errors)
        self._number += 1
        if ends:
            self._samples, self._number, self._epoch = None, 0, self._epoch + 1
        return SourceRead(number, block, tuple(errors), ends)

    def _pack(self, samples: list[tuple[int, Any]], errors: list[str]) -> Block:
        """Return the samples' block; all at once, or one by one to name what does not fit."""
        if not samples:
            return self._layout.empty(0)
        try:
            return self._layout.pack(stack([sample for _, sample in samples]))
        except SpecError:
            blocks = [self._layout.empty(0)]
            for at, sample in samples:
                try:
                    blocks.append(self._layout.pack(stack([sample])))
                except SpecError as error:
                    errors.append(f"sample {at}: {error}")
            return np.concatenate(blocks)

    def _next_samples(self) -> Iterator[tuple[int, Any]]:
        """Yield the samples of this read with their numbers."""
        start = self._rank + self._number * _STREAM_ROWS * self._size
        if self._samples is None:
            self._samples = islice(self._stream.open(), start, None, self._size)
        for row, sample in enumerate(islice(self._samples, _STREAM_ROWS)):
            yield start + row * self._size, sample


class ReadAhead:
    """Runs reads in their order, a few ahead, and gives their results in that order.

    Args:
        jobs: Functions that read; one that returns None ends them.
        executor: Executor that runs them; None runs them at once, in the caller's thread.
        depth: Largest number of reads under way, or done and not yet taken.
        notify: Function that is called after each read.
    """

    def __init__(
        self,
        jobs: Iterator[Callable[[], SourceRead | None]],
        executor: Executor | None,
        depth: int,
        notify: Callable[[], None],
    ) -> None:
        self._jobs = jobs
        self._executor = executor
        self._depth = depth
        self._notify = notify
        self._futures: deque[Future[SourceRead | None]] = deque()
        self.is_exhausted = False
        """Whether all that can be read was taken."""

    def take(self) -> SourceRead | None:
        """Return the next read; None if it is not done yet, or there is none."""
        self._fill()
        if self._futures and not self._futures[0].done():
            return None
        try:
            read = self._futures.popleft().result() if self._futures else None
        except BrokenExecutor as error:
            raise WorkerLostError("source: a process that reads it died") from error
        if read is None:
            self.is_exhausted = True
            self.cancel()
        self._fill()
        return read

    def _fill(self) -> None:
        while len(self._futures) < self._depth and (job := next(self._jobs, None)) is not None:
            self._futures.append(self._submit(job))

    def _submit(self, job: Callable[[], SourceRead | None]) -> Future[SourceRead | None]:
        if self._executor is None:
            done: Future[SourceRead | None] = Future()
            done.set_result(job())
            return done
        future = self._executor.submit(job)
        future.add_done_callback(lambda _: self._notify())
        return future

    def cancel(self) -> None:
        """Let go of what is under way; no more is begun."""
        self._jobs = iter(())
        for future in self._futures:
            future.cancel()
        self._futures.clear()


def make_executor(
    kind: Workers, num_workers: int, source: Source | None, layout: Layout
) -> Executor | None:
    """Return the executor of a source's reads; a stream (`source` None) is read one at a time."""
    if num_workers == 0:
        return None
    if kind == "threads":
        num_threads = num_workers if source is not None else 1
        return ThreadPoolExecutor(num_threads, thread_name_prefix="source")
    arguments: tuple[Any, ...] = (source, layout)
    return ProcessPoolExecutor(
        num_workers,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_process,
        initargs=arguments,
    )


_process: dict[str, Any] = {}
"""The source and the layout that a worker process was started with."""


def _start_process(source: Any, layout: Any) -> None:
    _process.update(source=source, layout=layout)


def _read_in_process(number: int, units: Sequence[int], ends_epoch: bool) -> SourceRead:
    return read_units(_process["source"], _process["layout"], number, units, ends_epoch)


def reader(
    source: Source, layout: Layout, executor: Executor | None
) -> Callable[[int, Sequence[int], bool], SourceRead]:
    """Return `read_units` for a source, as the executor can run it."""
    if isinstance(executor, ProcessPoolExecutor):
        return _read_in_process
    return partial(read_units, source, layout)
