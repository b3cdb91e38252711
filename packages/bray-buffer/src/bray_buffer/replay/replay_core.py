"""A replay without its lock: it inserts, draws and restores, and waits for nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bray_buffer.replay import replay_file
from bray_buffer.replay.prioritized_sampler import PrioritizedSampler
from bray_buffer.replay.random_numbers import RandomNumbers
from bray_buffer.replay.replay_config import ReplayConfig
from bray_buffer.replay.replay_parts import make_limiter, make_sampler, make_store
from bray_buffer.replay.transition_store import TransitionStore
from bray_core import metrics
from bray_core.errors import ConfigError, SpecError
from bray_core.layout import Block, Layout, Packed
from bray_core.nested import Nested

_COUNTS = ("pushed", "popped", "dropped")
"""What every replay counts."""
_RECORD_EVERY = 64
"""Pops from one record of the metrics to the next."""


class ReplayCore:
    """What `ReplayBuffer` does under its lock. Not thread-safe.

    Args:
        layout: Packed layout of one segment.
        config: Settings of the replay.
    """

    def __init__(self, layout: Layout, config: ReplayConfig) -> None:
        self._config = config
        self._sampler = make_sampler(config)
        self._store = make_store(layout, config, self._sampler)
        self._draws = RandomNumbers(config.seed, config.batch_size)
        self._limiter = make_limiter(config)
        self.has_rate = self._limiter is not None
        """Whether inserts and draws are kept in step."""
        self.batch_layout = self._store.batch_layout
        self.counts = dict.fromkeys(_COUNTS, 0)
        if config.sampler == "prioritized":
            self.counts["stale_priorities"] = 0
        self._takes = 0
        fields = self.batch_layout.fields
        self._weight = next((f.offset for f in fields if f.path == "weight"), 0)

    @property
    def size(self) -> int:
        """Segments or steps that are kept."""
        return self._store.ring.size

    def read(self, segments: tuple[Packed | Nested, ...]) -> list[Any]:
        """Return the segments of one push, checked; needs no lock. Raises SpecError."""
        read = self._store.read
        if len(segments) == 1:
            return read(segments[0])
        found = []
        for segment in segments:
            found += read(segment)
        return found

    def may_insert(self) -> bool:
        """Whether the rate allows a segment."""
        # One may have more steps than the margin ever allows: it comes when one step could.
        return self._limiter is None or self._limiter.can_insert(1)

    def insert(self, found: list[Any]) -> int:
        """Insert segments of `read`, and return their number."""
        if self._limiter is None and isinstance(self._store, TransitionStore):  # the quick way
            self.counts["dropped"] += self._store.insert_all(found)
            self.counts["pushed"] += len(found)
            return len(found)
        for segment in found:
            self.counts["dropped"] += self._store.insert(segment)
            if self._limiter is not None:
                self._limiter.inserted(self._store.count(segment))
        self.counts["pushed"] += len(found)
        return len(found)

    def memory(self, out: Block | None) -> Block:
        """Return `out` if a batch fits there, or new memory. Raises SpecError."""
        shape = (self._config.batch_size, self.batch_layout.nbytes)
        if out is None:
            return np.empty(shape, np.uint8)
        if out.shape != shape or out.dtype != np.uint8 or not out.flags.c_contiguous:
            raise SpecError(f"out: expected contiguous uint8 {shape}, got {out.dtype} {out.shape}")
        return out

    def is_ready(self) -> bool:
        """Return whether there is enough, and the rate allows a batch."""
        if self._store.ring.size < self._config.min_size:
            return False
        return self._limiter is None or self._limiter.can_sample(self._config.batch_size)

    def take(self, block: Block) -> Block | None:
        """Fill a batch; None if there is not enough, or the rate does not allow it."""
        if not self.is_ready():
            return None
        size = self._config.batch_size
        if self._limiter is not None:
            self._limiter.sampled(size)
        slots, weights = self._sampler.draw(self._draws.take())
        self._store.gather(slots, block)
        if weights is not None:
            at = self._weight
            block[:, at : at + 4].view(np.float32)[:, 0] = weights
        self.counts["popped"] += size
        if self._takes % _RECORD_EVERY == 0:
            self._record()
        self._takes += 1
        return block

    def _record(self) -> None:
        if self._config.unit == "segment":
            metrics.record("buffer/queued_segments", self._store.ring.size, kind="last")
        else:
            metrics.record("buffer/stored_steps", self._store.ring.size, kind="last")

    def why_not(self) -> str:
        """Say what a batch waits for."""
        if self._store.ring.size >= self._config.min_size:
            rate = self._config.samples_per_insert
            return f"too little was pushed for samples_per_insert={rate:g}"
        what = "segments" if self._config.unit == "segment" else "steps"
        return f"{self._store.ring.size} of {self._config.min_size} {what} are there"

    def prioritized(self) -> PrioritizedSampler:
        """Return the sampler. Raises ConfigError if it is another."""
        if not isinstance(self._sampler, PrioritizedSampler):
            raise ConfigError('sampler: expected a replay with sampler="prioritized"')
        return self._sampler

    def update(self, keys: npt.NDArray[Any], values: npt.NDArray[np.float64]) -> int:
        """Give items values of `PrioritizedSampler.check`; return how many were still there."""
        kept = self.prioritized().update(
            keys, values, self._store.ring.first, self._store.ring.next
        )
        stale = len(keys) - kept
        if stale:
            self.counts["stale_priorities"] += stale
            metrics.record("buffer/stale_priorities", stale, kind="count")
        return kept

    def knows(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return of which keys the items are, or were, here. Raises ConfigError."""
        ring, values = self._store.ring, self.prioritized().values(keys % self._store.capacity)
        known: npt.NDArray[np.bool_] = (keys < ring.first) | ((keys < ring.next) & (values > 0))
        return known

    def state_dict(self) -> dict[str, Any]:
        """Return where the draws stand, the counters and beta."""
        state: dict[str, Any] = {"draws": self._draws.state_dict(), "counts": dict(self.counts)}
        if self._limiter is not None:
            state["limiter"] = self._limiter.state_dict()
        if isinstance(self._sampler, PrioritizedSampler):
            state["beta"] = self._sampler.beta
            state["largest"] = self._sampler.largest
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there. Raises SpecError if it is the state of something else.

        The state of a uniform replay leaves the priorities as `load` has made them. One without a
        rate, such as of a local run that goes on on Ray, leaves the rate as `load` has balanced it.
        That of another rate, or of content that was lost with its process, is balanced, too: else
        one side would wait for what the other did long ago.
        """
        has_priorities = isinstance(self._sampler, PrioritizedSampler) and "beta" in state
        try:
            names = self.counts if has_priorities else _COUNTS
            counts = {name: int(state["counts"][name]) for name in names}
            draws = state["draws"]
            if isinstance(self._sampler, PrioritizedSampler) and has_priorities:
                self._sampler.set_beta(float(state["beta"]))
                self._sampler.largest = float(state["largest"])
        except (KeyError, TypeError, ValueError) as error:
            raise SpecError(f"state: not of such a replay: {error!r}") from error
        self._draws.load_state_dict(draws)
        if self._limiter is not None and "limiter" in state:
            self._limiter.load_state_dict(state["limiter"])
            is_lost = self.size < self._config.min_size <= state["limiter"]["inserted"]
            if is_lost or not self._limiter.is_in_pace:
                self.balance()
        self.counts |= counts

    def save(self, path: Path) -> None:
        """Write the segments, their keys and priorities to a file."""
        replay_file.save(path, self._store, self._sampler)

    def load(self, path: Path) -> int:
        """Restore what `save` wrote, and return how many segments were read."""
        count = replay_file.load(path, self._store, self._sampler)
        if self._limiter is not None and not self._limiter.state_dict()["inserted"]:
            self.balance()
        return count

    def balance(self) -> None:
        """Count what is kept as drawn in proportion: neither side of the rate is behind."""
        if self._limiter is not None:
            size, ratio = self._store.ring.size, self._config.samples_per_insert or 0.0
            drawn = int(ratio * max(0, size - self._config.min_size))
            self._limiter.load_state_dict({"inserted": size, "sampled": drawn})
