"""Replay: segments are kept, and batches of them, of steps or of sequences drawn at random."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bray_buffer import replay_content
from bray_buffer.draws import Draws
from bray_buffer.prioritized import Prioritized
from bray_buffer.replay_config import ReplayConfig
from bray_buffer.replay_parts import make_limiter, make_sampler, make_store
from bray_buffer.ring import as_layout
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

    def __init__(self, layout: Layout | Nested, config: ReplayConfig) -> None:
        self._layout = as_layout(layout)
        self._config = config
        self._sampler = make_sampler(config)
        self._store = make_store(self._layout, config, self._sampler)
        self._draws = Draws(config.seed, config.batch_size)
        self._limiter = make_limiter(config)
        self._counts = {"pushed": 0, "popped": 0, "dropped": 0}
        if config.sampler == "prioritized":
            self._counts["stale_priorities"] = 0
        self._pops = 0
        self._name = "segments" if config.unit == "segment" else "steps"
        fields = self._store.batch_layout.fields
        self._weight = next((f.offset for f in fields if f.path == "weight"), 0)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        self._closed = False

    @property
    def layout(self) -> Layout:
        """The packed layout of one segment."""
        return self._layout

    @property
    def batch_layout(self) -> Layout:
        """The packed layout of one row of a batch."""
        return self._store.batch_layout

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
        with self._lock:
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
        size = self._config.batch_size
        block = np.empty((size, self._store.batch_layout.nbytes), np.uint8)
        with self._lock:
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
        return Packed(self._store.batch_layout, block)

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
        if self._name == "segments":
            metrics.record("buffer/queued_segments", self._store.size, kind="last")
        else:
            metrics.record("buffer/stored_steps", self._store.size, kind="last")

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
        given, values = np.asarray(keys), sampler.check(priorities, len(np.atleast_1d(keys)))
        with self._lock:
            kept = sampler.update(given, values, self._store.first, self._store.next)
            stale = len(given) - kept
            if stale:
                self._counts["stale_priorities"] += stale
                metrics.record("buffer/stale_priorities", stale, kind="count")
        return kept

    def _prioritized(self) -> Prioritized:
        if not isinstance(self._sampler, Prioritized):
            raise ConfigError('sampler: expected a replay with sampler="prioritized"')
        return self._sampler

    def set_beta(self, beta: float) -> None:
        """Change how far weights correct the bias, from the next batch on.

        Raises:
            ConfigError: beta is not within 0 to 1, or the replay is not prioritized.
        """
        with self._lock:
            self._prioritized().set_beta(beta)

    def stats(self) -> dict[str, float]:
        """Return segments `pushed`; segments or steps overwritten (`dropped`) and kept (`queued`).

        Also items drawn (`popped`) and priorities that came too late (`stale_priorities`).
        """
        with self._lock:
            return {**self._counts, "queued": self._store.size}

    def state_dict(self) -> dict[str, Any]:
        """Return where the draws stand, the counters and beta; `save` writes the content."""
        with self._lock:
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
        with self._lock:
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
        with self._lock:
            replay_content.save(path, self._store, self._sampler)

    def load(self, path: Path) -> int:
        """Restore what `save` wrote into an empty replay; return how many segments were read.

        Of a file that holds more than the capacity, the newest segments stay.

        Raises:
            NotFoundError: there is no such file.
            SpecError: the file is broken, holds another layout, or the replay is not empty.
        """
        with self._lock:
            count = replay_content.load(path, self._store, self._sampler)
            if self._limiter is not None and not self._limiter.state_dict()["inserted"]:
                size = self._store.size
                ratio = self._config.samples_per_insert or 0.0
                drawn = int(ratio * max(0, size - self._config.min_size))  # neither side is behind
                self._limiter.load_state_dict({"inserted": size, "sampled": drawn})
            self._changed.notify_all()
        return count

    def close(self) -> None:
        """Wake every waiter with ClosedError and refuse further use."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()
