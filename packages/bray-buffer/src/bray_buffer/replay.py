"""Replay: segments are kept, and batches of them, of steps or of sequences drawn at random."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bray_buffer import storage
from bray_buffer.draws import Draws
from bray_buffer.prioritized import Prioritized
from bray_buffer.rate_limiter import RateLimiter
from bray_buffer.replay_config import ReplayConfig
from bray_buffer.ring import as_layout
from bray_buffer.sampling import Sampler, Store
from bray_buffer.segment_leaves import SegmentLeaves
from bray_buffer.sequences import Sequences
from bray_buffer.transform import Transform
from bray_buffer.transitions import Transitions
from bray_buffer.uniform import Uniform, UniformChosen
from bray_buffer.whole_segments import WholeSegments
from bray_core import metrics
from bray_core.errors import ClosedError, ConfigError, DeadlineError, SpecError
from bray_core.layout import Block, Layout, Packed
from bray_core.nested import Nested

_RECORD_EVERY = 64
"""Pops from one record of the metrics to the next."""


class ReplayBuffer:
    """A bounded store that overwrites its oldest segments. Thread-safe.

    Args:
        layout: of one segment, or its spec.
        config: what batches are made of, how they are drawn, sizes and seed.
        transform: a function that every batch goes through; see `bray_buffer.transform`.

    Raises:
        ConfigError: the layout lacks what the unit needs, or the segments are too long.
        CapacityError: the system refuses the memory.

    Example:
        >>> import numpy as np
        >>> from bray_core import nested
        >>> segment = {
        ...     "observation": np.arange(4, dtype=np.float32),
        ...     "action": np.zeros(4, np.int64),
        ...     "reward": np.ones(4, np.float32),
        ...     "terminated": np.array([False, False, False, True]),
        ...     "final_observation": np.float32(0),
        ... }
        >>> config = ReplayConfig(unit="transition", capacity=1000, batch_size=2, n_step=3)
        >>> replay = ReplayBuffer(nested.spec(segment), config)
        >>> replay.push(segment)
        1
        >>> sorted(replay.pop().tree)  # doctest: +NORMALIZE_WHITESPACE
        ['action', 'discount', 'next_observation', 'observation', 'reward', 'terminated']
    """

    def __init__(
        self,
        layout: Layout | Nested,
        config: ReplayConfig,
        transform: Callable[[Nested], Nested] | None = None,
    ) -> None:
        self._layout = as_layout(layout)
        self._config = config
        self._sampler = _make_sampler(config)
        self._store = _make_store(self._layout, config, self._sampler)
        self._transform = transform and Transform(transform, self._store.batch_layout)
        self._draws = Draws(config.seed, config.batch_size)
        self._limiter = _make_limiter(config)
        self._counts = {"pushed": 0, "popped": 0, "dropped": 0}
        if config.sampler == "prioritized":
            self._counts["stale_priorities"] = 0
        self._pops = 0
        self._name = "segments" if config.unit == "segment" else "steps"
        fields = self._store.batch_layout.fields
        self._weight = next((f.offset for f in fields if f.path == "weight"), 0)
        self._changed = threading.Condition()
        self._waiting = 0
        self._closed = False

    @property
    def layout(self) -> Layout:
        """The packed layout of one segment."""
        return self._layout

    @property
    def batch_layout(self) -> Layout:
        """The packed layout of one row of a batch."""
        return self._transform.layout if self._transform else self._store.batch_layout

    @property
    def has_transform(self) -> bool:
        """Whether batches go through a function."""
        return self._transform is not None

    @property
    def max_batch_rows(self) -> int:
        """Rows of a batch, as one of zeros shows."""
        rows = self._config.batch_size
        return self._transform.num_rows(rows) if self._transform else rows

    def push(
        self, *segments: Packed | Nested, wait: bool = False, timeout_s: float | None = None
    ) -> int:
        """Add segments and return how many were accepted.

        A replay has room for all; but with `samples_per_insert` an insert may have to wait until
        enough was drawn.

        Args:
            segments: packed, or nested arrays of the replay's spec.
            wait: for the rate; otherwise what is too early is not accepted, the caller keeps it.
            timeout_s: how long to wait at most; None waits until the buffer is closed.

        Raises:
            SpecError: a segment does not fit; nothing of this call was added.
            DeadlineError: the rate allowed no insert in time; says how many were accepted before.
            ClosedError: the buffer was closed.
        """
        read = self._store.read
        found = read(segments[0]) if len(segments) == 1 else [s for g in segments for s in read(g)]
        with self._changed:
            self._check_open()
            if self._limiter is None:
                for segment in found:
                    self._counts["dropped"] += self._store.insert(segment)
                accepted = len(found)
            else:
                accepted = self._insert_by_rate(found, wait, timeout_s)
            self._counts["pushed"] += accepted
            if self._waiting:
                self._changed.notify_all()
        return accepted

    def _insert_by_rate(self, found: list[Any], wait: bool, timeout_s: float | None) -> int:
        assert self._limiter is not None
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for accepted, segment in enumerate(found):
            count = self._store.count(segment)
            if not self._may_insert() and not (wait and self._wait_to_insert(deadline)):
                if not wait:
                    return accepted
                raise DeadlineError(
                    f"buffer: push found no room in time ({timeout_s:g} s): {accepted} of "
                    f"{len(found)} segments were accepted: too little was drawn for "
                    f"samples_per_insert={self._config.samples_per_insert:g}"
                )
            self._counts["dropped"] += self._store.insert(segment)
            self._limiter.inserted(count)
        return len(found)

    def _may_insert(self) -> bool:
        # A segment may have more steps than the margin ever allows: it comes when one step could.
        return self._limiter is None or self._limiter.can_insert(1)

    def _wait_to_insert(self, deadline: float | None) -> bool:
        self._changed.notify_all()  # what was inserted so far may be enough for a batch
        left = None if deadline is None else deadline - time.monotonic()
        found = self._wait(self._may_insert, left)
        self._check_open()
        return found

    def _wait(self, is_done: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait until it is done or the buffer closed; others notify only if someone waits."""
        self._waiting += 1
        try:
            return self._changed.wait_for(lambda: self._closed or is_done(), timeout_s)
        finally:
            self._waiting -= 1

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("buffer: closed")

    def pop(self, timeout_s: float | None = None) -> Packed:
        """Return `batch_size` items drawn with replacement, `[B, nbytes]` of `batch_layout`.

        Raises:
            DeadlineError: fewer than `min_size` segments or steps within `timeout_s`, or too few
                inserted for `samples_per_insert`.
            ClosedError: the buffer was closed.
        """
        block = np.empty((self._config.batch_size, self._store.batch_layout.nbytes), np.uint8)
        self._draw_into(block, timeout_s)
        if self._transform:
            block = self._transform(block)
        return Packed(self.batch_layout, block)

    def pop_into(self, rows: Block, timeout_s: float | None = None) -> None:
        """`pop` into memory at hand, of a replay without a transform.

        Args:
            rows: `[batch_size, nbytes]` of `batch_layout`.
            timeout_s: as of `pop`, with its errors.
        """
        if self._transform:
            raise ConfigError("pop_into: the replay has a transform, which makes its own rows")
        self._draw_into(rows, timeout_s)

    def _draw_into(self, block: Block, timeout_s: float | None) -> None:
        size = self._config.batch_size
        with self._changed:
            if self._closed or not self._is_ready():
                self._wait_to_sample(timeout_s)
            self._fill(block)
            self._counts["popped"] += size
            if self._limiter is not None:
                self._limiter.sampled(size)
                if self._waiting:
                    self._changed.notify_all()
            if self._pops % _RECORD_EVERY == 0:
                self._record()
            self._pops += 1

    def is_ready(self) -> bool:
        """Return whether a pop would wait for nothing."""
        with self._changed:
            return self._is_ready()

    def _is_ready(self) -> bool:
        if self._limiter is not None and not self._limiter.can_sample(self._config.batch_size):
            return False
        return self._store.size >= self._config.min_size

    def _wait_to_sample(self, timeout_s: float | None) -> None:
        if not self._wait(self._is_ready, timeout_s):
            what = f"{self._store.size} of {self._config.min_size} {self._name} are there"
            if self._store.size >= self._config.min_size:
                what = (
                    "too little was pushed for "
                    f"samples_per_insert={self._config.samples_per_insert:g}"
                )
            raise DeadlineError(f"buffer: no batch within {timeout_s:g} s: {what}")
        self._check_open()

    def _fill(self, block: Block) -> None:
        slots, weights = self._sampler.draw(self._draws.take())
        self._store.gather(slots, block)
        if weights is not None:
            at = self._weight
            block[:, at : at + 4].view(np.float32)[:, 0] = weights

    def _record(self) -> None:
        name = "queued_segments" if self._name == "segments" else "stored_steps"
        metrics.record(f"buffer/{name}", self._store.size, kind="last")

    def __iter__(self) -> Iterator[Packed]:
        """Yield batches until the buffer is closed."""
        while True:
            try:
                yield self.pop()
            except ClosedError:
                return

    def update_priorities(self, keys: npt.ArrayLike, priorities: npt.ArrayLike) -> int:
        """Give items of a batch new priorities, and return how many of them are still there.

        Those that were overwritten meanwhile are counted as `stale_priorities`.

        Args:
            keys: of the batch, `[B]`.
            priorities: such as absolute errors, `[B]`, finite and ≥ 0.

        Raises:
            ConfigError: the replay is not prioritized.
            SpecError: a priority is negative or not finite, or a key was never drawn; nothing of
                this call was changed.
        """
        sampler = self._prioritized()
        given = np.asarray(keys)
        if given.ndim != 1 or given.dtype.kind not in "iu":
            raise SpecError(f"keys: expected integers (B,), got {given.dtype} {given.shape}")
        values = sampler.check(priorities, len(given))
        with self._changed:
            self._check_keys(given)
            slots = given % self._store.capacity
            if len(given) and given.min() < self._store.first:
                kept = given >= self._store.first
                slots, values = slots[kept], values[kept]
                stale = len(given) - len(slots)
                self._counts["stale_priorities"] += stale
                metrics.record("buffer/stale_priorities", stale, kind="count")
            if len(slots) and sampler.values(slots).min() == 0:
                raise SpecError("keys: expected those of batches, got one that cannot be drawn")
            sampler.update(slots, values)
        return len(slots)

    def _check_keys(self, keys: npt.NDArray[Any]) -> None:
        if len(keys) and (keys.max() >= self._store.next or keys.min() < 0):
            raise SpecError(
                f"keys: expected those of batches, 0 to {self._store.next - 1}, "
                f"got {keys.min()} to {keys.max()}"
            )

    def _prioritized(self) -> Prioritized:
        if not isinstance(self._sampler, Prioritized):
            raise ConfigError('sampler: expected a replay with sampler="prioritized"')
        return self._sampler

    def set_beta(self, beta: float) -> None:
        """Change how far weights correct the bias, from the next batch on.

        Raises:
            ConfigError: beta is not within 0 to 1, or the replay is not prioritized.
        """
        with self._changed:
            self._prioritized().set_beta(beta)

    def stats(self) -> dict[str, float]:
        """Return segments `pushed`; segments or steps overwritten (`dropped`) and kept (`queued`).

        Also items drawn (`popped`) and priorities that came too late (`stale_priorities`).
        """
        with self._changed:
            return {**self._counts, "queued": self._store.size}

    def state_dict(self) -> dict[str, Any]:
        """Return where the draws stand, the counters and beta; `save` writes the content."""
        with self._changed:
            state: dict[str, Any] = {"draws": self._draws.state_dict()}
            state["counts"] = dict(self._counts)
            if self._limiter is not None:
                state["limiter"] = self._limiter.state_dict()
            if isinstance(self._sampler, Prioritized):
                state["beta"] = self._sampler.beta
                state["largest"] = self._sampler.largest
            return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there.

        Raises:
            SpecError: it is the state of something else.
        """
        with self._changed:
            try:
                counts = {name: int(state["counts"][name]) for name in self._counts}
                draws = state["draws"]
                limiter = state["limiter"] if self._limiter is not None else {}
                if isinstance(self._sampler, Prioritized):
                    self._sampler.set_beta(float(state["beta"]))
                    self._sampler.largest = float(state["largest"])
            except (KeyError, TypeError, ValueError) as error:
                raise SpecError(f"state: not of such a replay: {error!r}") from error
            self._draws.load_state_dict(draws)
            if self._limiter is not None:
                self._limiter.load_state_dict(limiter)
            self._counts = counts

    def save(self, path: Path) -> None:
        """Write the segments, their keys and priorities to a file, whole or not at all.

        Pushes and pops wait until it is written.

        Raises:
            NotFoundError: there is no such folder.
            CapacityError: the disk is full.
        """
        with self._changed:
            store = self._store
            extra: dict[str, Any] = {"first": store.first}
            if isinstance(self._sampler, Prioritized):
                numbers = np.arange(store.first, store.next)
                extra["priorities"] = self._sampler.values(numbers % store.capacity)
            storage.save(path, store.record, _chunks(store), extra)

    def load(self, path: Path) -> int:
        """Restore what `save` wrote into an empty replay; return how many segments were read.

        Of a file that holds more than the capacity, the newest segments stay.

        Raises:
            NotFoundError: there is no such file.
            SpecError: the file is broken, holds another layout, or the replay is not empty.
        """
        count, extra, chunks = storage.load(path, self._store.record)
        with self._changed:
            self._store.start_at(int(extra.get("first", 0)))
            for chunk in chunks:
                for segment in self._store.restore(chunk):
                    self._store.insert(segment)
            size, first = self._store.size, self._store.first
            if size and isinstance(self._sampler, Prioritized) and "priorities" in extra:
                self._sampler.restore(first % self._store.capacity, extra["priorities"][-size:])
            if self._limiter is not None and not self._limiter.state_dict()["inserted"]:
                ratio = self._config.samples_per_insert or 0.0
                drawn = int(ratio * max(0, size - self._config.min_size))  # neither side is behind
                self._limiter.load_state_dict({"inserted": size, "sampled": drawn})
            self._changed.notify_all()
        return count

    def close(self) -> None:
        """Wake every waiter with ClosedError and refuse further use."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def _make_sampler(config: ReplayConfig) -> Sampler:
    if config.sampler == "prioritized":
        return Prioritized(config.capacity, config.alpha, config.beta, config.epsilon)
    chosen = config.unit == "sequence"
    return UniformChosen(config.capacity) if chosen else Uniform(config.capacity)


def _make_store(layout: Layout, config: ReplayConfig, sampler: Sampler) -> Store:
    if config.unit == "segment":
        return WholeSegments(layout, config, sampler)
    leaves = SegmentLeaves(layout)
    if leaves.length > config.capacity:
        raise ConfigError(
            f"capacity: expected {leaves.length} steps or more, those of one segment, "
            f"got {config.capacity}"
        )
    kind = Transitions if config.unit == "transition" else Sequences
    return kind(leaves, config, sampler)


def _make_limiter(config: ReplayConfig) -> RateLimiter | None:
    if config.samples_per_insert is None or config.error_margin is None:
        return None
    return RateLimiter(
        config.samples_per_insert, config.error_margin, config.min_size, config.batch_size
    )


def _chunks(store: Store) -> Iterator[Block]:
    """Join records to chunks of about a mebibyte, so that none is written by itself."""
    together = max(1, (1 << 20) // store.record.nbytes)
    records = store.records()
    while batch := list(itertools.islice(records, together)):
        yield np.concatenate(batch)
