"""Runs batches on an engine: one at a time, each with one version of the weights."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bray_core import metrics
from bray_core.errors import BrayError, ClosedError
from bray_core.nested import Nested
from bray_core.protocols import Answer
from bray_model.config import ModelConfig
from bray_model.engines.engine import Engine, EngineCache
from bray_model.signature import Signature
from bray_model.tree_spec import Leaf, Leaves, TreeSpec
from bray_model.versions.weights import VersionWeights

_ALIGN_BYTES = 64  # CPU kernels may round otherwise on memory that is aligned otherwise

_LOAD_S = 1.0


class NonFiniteError(BrayError):
    """A model's output holds NaN or inf; names the output."""


@dataclass(slots=True, eq=False)
class BatchRequest:
    """The checked leaves of one request: one row, or with `batch` rows `[B, ...]`."""

    leaves: Leaves
    rows: int = 1
    batch: bool = False

    @classmethod
    def of(cls, signature: Signature, inputs: tuple[Nested, ...], batch: bool) -> BatchRequest:
        """Check a model's inputs. Raises SpecError: names the leaf that does not fit."""
        if batch:
            leaves, rows = signature.input_tree.batch(inputs)
            return cls(leaves, rows, True)
        return cls(signature.input_tree.row(inputs))


class BatchExecutor:
    """Runs batches with the version that is current. Thread-safe, blocking.

    Args:
        engine: Engine that holds the weights of `current`; owned from now on.
        signature: Inputs and outputs of the engine.
        config: Batch size, padding, memory for versions.
        current: Version that the engine holds.
    """

    def __init__(
        self, engine: Engine, signature: Signature, config: ModelConfig, current: VersionWeights
    ) -> None:
        self.current = current
        """Assign to change the weights: it takes effect before the next batch."""
        self._is_root = True
        self._closed = False
        self._engines = EngineCache(engine, current, config.cache_bytes)
        self._lock = threading.Lock()
        self._config = config
        self._outputs = signature.output_tree
        self._block = _InputBlock(signature.input_tree, config.max_batch_size)
        self._load = _Load()

    def clone(self, current: VersionWeights) -> BatchExecutor:
        """Return one for another version: engines, input block, load and lock are shared."""
        clone = copy.copy(self)
        clone.current = current
        clone._is_root = False
        return clone

    def close(self) -> None:
        """Keep no engine for this clone, refuse further use; waits for the batch that runs."""
        with self._lock:
            self._closed = True
            self._engines.leave(self)

    def run(self, requests: Sequence[BatchRequest]) -> list[Answer | Exception]:
        """Answer requests in one batch, or one request that is larger than a batch in several.

        All answers of a batch come from one version. If the engine refuses a batch, each request
        runs by itself, so that a bad one fails alone; what it fails with stands in its place.

        Raises:
            Exception: whatever the engine raises, where there is only one request.
        """
        return run_or_split(self._run, requests)

    def _run(self, requests: Sequence[BatchRequest]) -> list[Answer | Exception]:
        with self._lock:
            if self._closed:
                raise ClosedError("the model was closed before this batch ran")
            current = self.current
            if self._is_root:
                engine = self._engines.root_engine(current)
            else:
                engine = self._engines.engine(self, current)
            outputs = self._run_rows(engine, requests)
        return self._answers(requests, outputs, current.version)

    def _run_rows(self, engine: Engine, requests: Sequence[BatchRequest]) -> Leaves:
        size = self._config.max_batch_size
        if len(requests) == 1 and requests[0].rows > size:
            parts = [self._step(engine, [part]) for part in _split(requests[0], size)]
            return [np.concatenate(column) for column in zip(*parts, strict=True)]
        return self._step(engine, requests)

    def _step(self, engine: Engine, requests: Sequence[BatchRequest]) -> Leaves:
        """Run one batch; returns the output leaves `[B, ...]` without padding."""
        started = time.perf_counter()
        rows = self._block.fill(requests)
        size = self._padded(rows)
        leaves = self._outputs.exactly(engine.run(self._block.inputs(rows, size)), size)
        metrics.record("model/batch_rows", rows)
        ended = time.perf_counter()
        metrics.record("model/forward_s", ended - started)
        self._load.add(started, ended)
        return [leaf[:rows] for leaf in leaves]

    def _padded(self, rows: int) -> int:
        return next((size for size in self._config.pad_to if size >= rows), rows)

    def _answers(
        self, requests: Sequence[BatchRequest], outputs: Leaves, version: int
    ) -> list[Answer | Exception]:
        build = self._outputs.build
        checks = self._config.reject_non_finite and not _are_finite(outputs)
        answers: list[Answer | Exception] = []
        start = 0
        for request in requests:
            stop = start + request.rows
            if checks and (error := self._non_finite(outputs, start, stop)):
                answers.append(error)
            elif request.batch:
                answers.append(Answer(build([leaf[start:stop] for leaf in outputs]), version))
            else:
                answers.append(Answer(build([leaf[start, ...] for leaf in outputs]), version))
            start = stop
        return answers

    def _non_finite(self, outputs: Leaves, start: int, stop: int) -> NonFiniteError | None:
        """Return what is wrong with some rows, if anything is."""
        for path, leaf in zip(self._outputs.paths, outputs, strict=True):
            if not _are_finite([leaf[start:stop]]):
                return NonFiniteError(f"{path}: expected finite values, got NaN or inf")
        return None


class _Load:
    """Records about once a second which share of the time forwards took."""

    def __init__(self) -> None:
        self._since = time.perf_counter()
        self._busy_s = 0.0

    def add(self, started: float, ended: float) -> None:
        """Take note of a forward; called by one thread at a time."""
        self._busy_s += ended - started
        if ended - self._since >= _LOAD_S:
            metrics.record("model/utilisation", self._busy_s / (ended - self._since))
            self._since, self._busy_s = ended, 0.0


def run_or_split(
    run: Callable[[Sequence[BatchRequest]], list[Answer | Exception]],
    requests: Sequence[BatchRequest],
) -> list[Answer | Exception]:
    """Run a batch; where that fails, each request by itself: its error stands in its place.

    Raises:
        Exception: There is one request only, and it failed.
    """
    try:
        return run(requests)
    except Exception:
        if len(requests) == 1:
            raise
    results: list[Answer | Exception] = []
    for request in requests:
        try:
            results += run([request])
        except Exception as error:  # noqa: BLE001  a request boundary: passed to its caller
            results.append(error)
    return results


def _are_finite(leaves: Leaves) -> bool:
    return all(np.isfinite(leaf).all() for leaf in leaves if leaf.dtype.kind in "fc")


class _InputBlock:
    """Preallocated input arrays `[capacity, ...]` of one signature, one per leaf."""

    def __init__(self, tree: TreeSpec, capacity: int) -> None:
        self._tree = tree
        self._columns = [_aligned((capacity, *s.shape), s.dtype) for s in tree.specs]

    def fill(self, requests: Sequence[BatchRequest]) -> int:
        """Copy the requests' rows to the front and return their number."""
        start = 0
        for request in requests:
            for column, leaf in zip(self._columns, request.leaves, strict=True):
                if request.batch:
                    column[start : start + request.rows] = leaf
                else:
                    column[start] = leaf
            start += request.rows
        return start

    def inputs(self, rows: int, size: int) -> tuple[object, ...]:
        """Return the first `size` rows as input trees; those from `rows` on repeat the first."""
        if rows < size:
            for column in self._columns:
                column[rows:size] = column[0]
        tree: tuple[object, ...] = self._tree.build([column[:size] for column in self._columns])
        return tree


def _split(request: BatchRequest, size: int) -> list[BatchRequest]:
    starts = range(0, request.rows, size)
    return [
        BatchRequest(
            [leaf[i : i + size] for leaf in request.leaves], min(size, request.rows - i), True
        )
        for i in starts
    ]


def _aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Leaf:
    nbytes = int(np.prod(shape)) * dtype.itemsize
    raw = np.zeros(nbytes + _ALIGN_BYTES, np.uint8)
    start = -raw.ctypes.data % _ALIGN_BYTES
    return raw[start : start + nbytes].view(dtype).reshape(shape)
