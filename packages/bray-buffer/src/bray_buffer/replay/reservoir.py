"""A reservoir: a weighted sample, without replacement, of all that ever came."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bray_buffer import storage
from bray_buffer.config import ReservoirConfig
from bray_buffer.iterable_buffer import IterableBuffer
from bray_buffer.saved_state import generator_state, set_generator_state
from bray_buffer.segment_rows import as_layout, as_rows
from bray_buffer.waitable_lock import WaitableLock
from bray_core.errors import DeadlineError, SpecError
from bray_core.layout import Block, Layout, Packed
from bray_core.nested import Nested


class Reservoir(IterableBuffer):
    """Keeps `capacity` segments of a stream of unknown length, in one pass. Thread-safe.

    At any time the sample is what `capacity` draws without replacement from all segments so far
    would give, each draw by weight. Algorithm A-ExpJ (Efraimidis & Spirakis 2006, "Weighted random
    sampling with a reservoir"): a segment's key is u^(1/w), u uniform; the largest keys stay. Once
    the reservoir is full, the weight that passes until the next segment enters is drawn at once,
    so that of n segments only about capacity · log(n / capacity) cost random numbers.

    Args:
        layout: Packed layout of one segment, or its spec.
        config: Settings: sizes and seed.

    Examples:
        >>> spec = {"x": np.zeros((), np.float32)}
        >>> from bray_core import nested
        >>> reservoir = Reservoir(nested.spec(spec), ReservoirConfig(capacity=2, batch_size=1))
        >>> rows = Packed(reservoir.layout, reservoir.layout.pack({"x": np.arange(9, dtype="f4")}))
        >>> reservoir.push(rows, weights=[1, 1, 1, 1e9, 1, 1, 1, 1e9, 1])
        9
        >>> sorted(reservoir.sample().tree["x"].tolist())
        [3.0, 7.0]
    """

    def __init__(self, layout: Layout | Nested, config: ReservoirConfig) -> None:
        self._layout = as_layout(layout)
        self._config = config
        self._random = np.random.default_rng(config.seed)
        self._blocks = self._layout.empty(config.capacity)
        self._keys: list[tuple[float, int]] = []
        """A heap of (log key, row of `_blocks`)."""
        self._jump = 0.0
        """Weight that passes until the next segment enters, once the reservoir is full."""
        self._counts = {"pushed": 0, "popped": 0}
        self._lock = WaitableLock("reservoir")

    @property
    def layout(self) -> Layout:
        """The packed layout of one segment."""
        return self._layout

    @property
    def batch_layout(self) -> Layout:
        """The packed layout of a batch's rows: that of a segment."""
        return self._layout

    def push(
        self,
        *segments: Packed | Nested,
        weights: npt.ArrayLike | None = None,
        wait: bool = False,
        timeout_s: float | None = None,
    ) -> int:
        """Offer segments to the sample and return their number; nothing waits.

        Args:
            segments: Segments, packed or nested arrays of the spec.
            weights: Weight of each segment, above 0 and finite; equal by default.
            wait: Without effect: there is always room.
            timeout_s: Without effect: nothing waits.

        Raises:
            SpecError: a segment or a weight does not fit; nothing of this call was added.
            ClosedError: the reservoir was closed.
        """
        blocks = [as_rows(self._layout, segment) for segment in segments]
        count = sum(map(len, blocks))
        checked = _check_weights(weights, count)
        with self._lock.mutex:
            self._lock.check_open()
            start = 0
            for block in blocks:
                self._add(block, checked[start : start + len(block)])
                start += len(block)
            self._counts["pushed"] += count
            self._lock.notify()
        return count

    async def push_async(
        self,
        *segments: Packed | Nested,
        weights: npt.ArrayLike | None = None,
        wait: bool = False,
        timeout_s: float | None = None,
    ) -> int:
        """`push`, which waits for nothing, under the name that coroutines use."""
        return self.push(*segments, weights=weights)

    def _add(self, block: Block, weights: npt.NDArray[np.float64]) -> None:
        free = self._config.capacity - len(self._keys)
        for row, weight in zip(block[:free], weights[:free], strict=True):
            self._enter(row, math.log(self._uniform()) / weight)
        block, weights = block[free:], weights[free:]
        passed = np.cumsum(weights)
        before = 0.0  # weight of this block that passed
        while len(block):
            at = int(np.searchsorted(passed, before + self._jump))
            if at == len(block):
                self._jump -= float(passed[-1]) - before
                return
            # The key is drawn from those above the lowest: of u^(1/w), u above lowest^w.
            span = math.expm1(self._keys[0][0] * weights[at])
            self._enter(block[at], math.log1p(span * self._random.random()) / weights[at])
            before = float(passed[at])

    def _enter(self, row: Block, key: float) -> None:
        """Put a row in, in place of the one with the lowest key if the reservoir is full."""
        if len(self._keys) < self._config.capacity:
            slot = len(self._keys)
            heapq.heappush(self._keys, (key, slot))
        else:
            _, slot = heapq.heapreplace(self._keys, (key, self._keys[0][1]))
        self._blocks[slot] = row
        if len(self._keys) == self._config.capacity:
            lowest = self._keys[0][0]
            self._jump = math.log(self._uniform()) / lowest if lowest else math.inf

    def _uniform(self) -> float:
        """Return a number in (0, 1]."""
        return 1.0 - self._random.random()

    def pop(self, timeout_s: float | None = None) -> Packed:
        """Return `batch_size` different segments of the sample, drawn uniformly, `[B, nbytes]`.

        They stay in the sample.

        Raises:
            DeadlineError: fewer segments than that within `timeout_s`.
            ClosedError: the reservoir was closed.
        """
        return self._finish(self._lock.wait_for(self._draw, timeout_s), timeout_s)

    async def pop_async(self, timeout_s: float | None = None) -> Packed:
        """`pop` for a coroutine."""
        return self._finish(await self._lock.wait_for_async(self._draw, timeout_s), timeout_s)

    def _draw(self) -> Block | None:
        if len(self._keys) < self._config.batch_size:
            return None
        self._counts["popped"] += self._config.batch_size
        rows = self._random.choice(len(self._keys), self._config.batch_size, replace=False)
        return self._blocks.take(rows, axis=0)

    def _finish(self, block: Block | None, timeout_s: float | None) -> Packed:
        if block is None:
            raise DeadlineError(
                f"reservoir: no batch within {timeout_s:g} s: {len(self._keys)} of "
                f"{self._config.batch_size} segments are there"
            )
        return Packed(self._layout, block)

    def sample(self) -> Packed:
        """Return the whole sample, in no order that means anything, `[0…capacity, nbytes]`."""
        with self._lock.mutex:
            return Packed(self._layout, self._blocks[: len(self._keys)].copy())

    def stats(self) -> dict[str, float]:
        """Return segments `pushed`, drawn (`popped`), and in the sample (`queued`)."""
        with self._lock.mutex:
            return {**self._counts, "queued": len(self._keys)}

    def save(self, path: Path) -> None:
        """Write the sample and its keys to a file, whole or not at all; pushes wait meanwhile."""
        with self._lock.mutex:
            count = len(self._keys)
            keys = np.array([key for key, _ in sorted(self._keys, key=lambda pair: pair[1])])
            extra = {
                "capacity": self._config.capacity,
                "keys": keys,
                "jump": float(self._jump),
                "pushed": self._counts["pushed"],
            }
            storage.save(path, self._layout, [self._blocks[:count]], extra)

    def load(self, path: Path) -> int:
        """Take what `save` wrote in place of the sample, and return how many segments it has.

        Raises:
            NotFoundError: the file is missing.
            SpecError: the file is broken, or has another layout or capacity.
        """
        count, extra, chunks = storage.load(path, self._layout)
        with self._lock.mutex:
            if extra.get("capacity") != self._config.capacity:
                raise SpecError(
                    f"{path}: expected a sample of capacity={self._config.capacity}, got "
                    f"{extra.get('capacity')}: a sample cannot change its size"
                )
            self._keys = []
            start = 0
            for chunk in chunks:
                self._blocks[start : start + len(chunk)] = chunk
                start += len(chunk)
            self._keys = [(float(key), slot) for slot, key in enumerate(extra["keys"])]
            heapq.heapify(self._keys)
            self._jump, self._counts["pushed"] = extra["jump"], extra["pushed"]
            self._lock.notify()
        return count

    def state_dict(self) -> dict[str, Any]:
        """Return the random generator's state."""
        with self._lock.mutex:
            return {"random": generator_state(self._random)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state_dict`.

        Raises:
            SpecError: the state is another kind of buffer's.
        """
        with self._lock.mutex:
            set_generator_state(self._random, state.get("random"))

    def set_policy_version(self, version: int) -> None:
        """Do nothing: a sample of all that ever came has no bound on its age."""

    def close(self) -> None:
        """Wake every waiter with ClosedError and refuse further use."""
        self._lock.close()


def _check_weights(weights: npt.ArrayLike | None, count: int) -> npt.NDArray[np.float64]:
    if weights is None:
        return np.ones(count)
    checked = np.atleast_1d(np.asarray(weights, np.float64))
    if checked.shape != (count,):
        raise SpecError(f"weights: expected {count}, one a segment, got shape {checked.shape}")
    bad = checked[~((checked > 0) & (checked < math.inf))]
    if bad.size:
        raise SpecError(f"weights: expected finite numbers above 0, got {bad[0]}")
    return checked
