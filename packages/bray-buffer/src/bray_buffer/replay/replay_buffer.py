"""Replay: segments are kept, and batches of them, of steps or of sequences drawn at random."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bray_buffer.iterable_buffer import IterableBuffer
from bray_buffer.replay.replay_config import ReplayConfig
from bray_buffer.replay.replay_core import ReplayCore
from bray_buffer.saved_state import first_state
from bray_buffer.segment_rows import as_layout
from bray_buffer.transform import Transform
from bray_buffer.waitable_lock import WaitableLock
from bray_core.errors import ConfigError, DeadlineError
from bray_core.layout import Block, Layout, Packed
from bray_core.nested import Nested


class _Push:
    """One call of push, while it waits for the rate."""

    __slots__ = ("found", "taken", "waits")

    def __init__(self, found: list[Any], waits: bool) -> None:
        self.found = found
        self.waits = waits
        self.taken = 0


class ReplayBuffer(IterableBuffer):
    """A bounded store that overwrites its oldest segments. Thread-safe.

    Args:
        layout: Packed layout of one segment, or its spec.
        config: Settings: what batches are made of, how they are drawn, sizes and seed.
        transform: Function that every batch goes through; see `bray_buffer.transform`.

    Raises:
        ConfigError: the layout lacks what the unit needs, or the segments are too long.
        CapacityError: the system refuses the memory.

    Examples:
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
        self._core = ReplayCore(self._layout, config)
        self._transform = transform and Transform(transform, self._core.batch_layout)
        self._batch_size = config.batch_size
        self._lock = WaitableLock("buffer")

    @property
    def layout(self) -> Layout:
        """The packed layout of one segment."""
        return self._layout

    @property
    def batch_layout(self) -> Layout:
        """The packed layout of one row of a batch."""
        return self._transform.layout if self._transform else self._core.batch_layout

    @property
    def max_batch_rows(self) -> int:
        """Rows of a batch, as one of zeros shows."""
        return self._transform.num_rows(self._batch_size) if self._transform else self._batch_size

    @property
    def fills_memory(self) -> bool:
        """Whether `pop` takes `out`: it does without a transform, which makes its own rows."""
        return self._transform is None

    def is_ready(self) -> bool:
        """Return whether a pop would wait for nothing."""
        with self._lock.mutex:
            return self._core.is_ready()

    def push(
        self, *segments: Packed | Nested, wait: bool = False, timeout_s: float | None = None
    ) -> int:
        """Add segments and return how many were accepted.

        A replay has room for all; but with `samples_per_insert` an insert may have to wait until
        enough was drawn.

        Args:
            segments: Segments, packed or nested arrays of the replay's spec.
            wait: Whether to wait for the rate; otherwise segments that come too early are not
                accepted, and the caller keeps them.
            timeout_s: Longest wait; None waits until the buffer is closed.

        Raises:
            SpecError: a segment does not fit; nothing of this call was added.
            DeadlineError: the rate allowed no insert in time; the message says how many were
                accepted before.
            ClosedError: the buffer was closed.
        """
        found = self._core.read(segments)
        if not self._core.has_rate:  # the quick way
            with self._lock.mutex:
                self._lock.check_open()
                taken = self._core.insert(found)
                self._lock.notify()
            return taken
        push = _Push(found, wait)
        return self._taken(
            push, self._lock.wait_for(partial(self._offer, push), timeout_s), timeout_s
        )

    async def push_async(
        self, *segments: Packed | Nested, wait: bool = False, timeout_s: float | None = None
    ) -> int:
        """`push` for a coroutine; one that is cancelled while it waits has pushed a part."""
        push = _Push(self._core.read(segments), wait)
        done = await self._lock.wait_for_async(partial(self._offer, push), timeout_s)
        return self._taken(push, done, timeout_s)

    def begin_with(self, segments: Iterable[Packed | Nested]) -> int:
        """Add segments that were played before, and return how many.

        None of them waits for the rate, and what is drawn later keeps pace with what is pushed
        after them.

        Args:
            segments: Segments, packed or nested arrays of the replay's spec.

        Raises:
            SpecError: a segment does not fit; those before it are there.
            ClosedError: the buffer was closed.
        """
        count = 0
        for segment in segments:
            found = self._core.read((segment,))
            with self._lock.mutex:
                self._lock.check_open()
                count += self._core.insert(found)
        with self._lock.mutex:
            self._core.balance()
            self._lock.notify()
        return count

    def _offer(self, push: _Push) -> int | None:
        """Insert what the rate allows, and return how much that was; None to be called again."""
        before = push.taken
        while push.taken < len(push.found) and self._core.may_insert():
            push.taken += self._core.insert(push.found[push.taken : push.taken + 1])
        if push.taken > before:
            self._lock.notify()
        return None if push.waits and push.taken < len(push.found) else push.taken

    def _taken(self, push: _Push, done: int | None, timeout_s: float | None) -> int:
        if done is None:
            raise DeadlineError(
                f"buffer: push found no room in time ({timeout_s:g} s): {push.taken} of "
                f"{len(push.found)} segments were accepted: too little was drawn for "
                "samples_per_insert"
            )
        return done

    def pop(self, timeout_s: float | None = None, *, out: Block | None = None) -> Packed:
        """Return `batch_size` items drawn with replacement, `[B, nbytes]` of `batch_layout`.

        Args:
            timeout_s: Longest wait for `min_size` and the rate; None waits until the buffer is
                closed.
            out: Contiguous memory `[B, nbytes]` that is filled, such as a slot of a ring; new
                memory by default.

        Raises:
            DeadlineError: fewer than `min_size` segments or steps within `timeout_s`, or too few
                inserted for `samples_per_insert`.
            ClosedError: the buffer was closed.
            SpecError: `out` does not fit, or the transform failed: this batch is gone, the next pop
                goes on.
            ConfigError: `out` with a transform.
        """
        if out is not None and self._transform:
            raise ConfigError("out: expected none, for the transform makes rows of its own")
        block = self._core.memory(out)
        with self._lock.mutex:  # the quick way
            # One try under the lock, without the deadline that `wait_for` would work out.
            done = None if self._lock.is_closed else self._take(block)
        if done is None:
            done = self._lock.wait_for(partial(self._take, block), timeout_s)
        return self._finish(done, timeout_s)

    async def pop_async(self, timeout_s: float | None = None) -> Packed:
        """`pop` for a coroutine."""
        take = partial(self._take, self._core.memory(None))
        return self._finish(await self._lock.wait_for_async(take, timeout_s), timeout_s)

    def _take(self, block: Block) -> Block | None:
        done = self._core.take(block)
        if done is not None and self._core.has_rate:
            self._lock.notify()
        return done

    def _finish(self, block: Block | None, timeout_s: float | None) -> Packed:
        if block is None:
            raise DeadlineError(f"buffer: no batch within {timeout_s:g} s: {self._core.why_not()}")
        return Packed(self.batch_layout, self._transform(block) if self._transform else block)

    def update_priorities(self, keys: npt.ArrayLike, priorities: npt.ArrayLike) -> int:
        """Give items of a batch new priorities, and return how many of them are still there.

        Those that were overwritten meanwhile are counted as `stale_priorities`.

        Args:
            keys: Keys of the batch, `[B]`.
            priorities: Priorities `[B]`, finite and 0 or more, such as absolute errors.

        Raises:
            ConfigError: the replay is not prioritized.
            SpecError: a priority is negative or not finite, or a key was never drawn; nothing of
                this call was changed.
        """
        given = np.asarray(keys)
        values = self._core.prioritized().check(priorities, given.size)
        with self._lock.mutex:
            return self._core.update(given, values)

    def knows(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return of which keys `[B]` the items are, or were, in this replay.

        Raises:
            ConfigError: the replay is not prioritized.
        """
        with self._lock.mutex:
            return self._core.knows(keys)

    def set_beta(self, beta: float) -> None:
        """Change how far weights correct the bias, from the next batch on.

        Raises:
            ConfigError: beta is not within 0 to 1, or the replay is not prioritized.
        """
        with self._lock.mutex:
            self._core.prioritized().set_beta(beta)

    def stats(self) -> dict[str, float]:
        """Return segments `pushed`; segments or steps overwritten (`dropped`) and kept (`queued`).

        Also items drawn (`popped`) and priorities that came too late (`stale_priorities`).
        """
        with self._lock.mutex:
            return {**self._core.counts, "queued": self._core.size}

    def state_dict(self) -> dict[str, Any]:
        """Return where the draws stand, the counters and beta; `save` writes the content."""
        with self._lock.mutex:
            return self._core.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned.

        Raises:
            SpecError: the state is of another kind of buffer.
        """
        with self._lock.mutex:
            self._core.load_state_dict(first_state(state))

    def save(self, path: Path) -> None:
        """Write the segments, their keys and priorities to a file, whole or not at all.

        Pushes and pops wait until it is written.

        Raises:
            NotFoundError: the folder is missing.
            CapacityError: the disk is full.
        """
        with self._lock.mutex:
            self._core.save(path)

    def load(self, path: Path) -> int:
        """Restore what `save` wrote into an empty replay; return how many segments were read.

        Where the file holds more than the capacity, the newest segments stay.

        Raises:
            NotFoundError: the file is missing.
            SpecError: the replay is not empty, the file holds another layout, or it is damaged:
                then what came before the damage is there.
        """
        with self._lock.mutex:
            count = self._core.load(path)
            self._lock.notify()
        return count

    def close(self) -> None:
        """Wake every waiter with ClosedError and refuse further use."""
        self._lock.close()
