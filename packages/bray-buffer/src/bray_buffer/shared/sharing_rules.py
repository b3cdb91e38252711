"""Rules of producers, consumers and a worker: names of memory, what happens without room."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from bray_buffer.config import BufferConfig, WhenFull
from bray_buffer.replay.replay_config import ReplayConfig
from bray_buffer.shared.slot_pool import PREFIX, SlotPool, Write, deadline_after
from bray_core.layout import Layout

PlainBufferConfig = BufferConfig | ReplayConfig

_MOMENT_S = 1.0


@dataclass(frozen=True, slots=True)
class SharingRules:
    """The part of a worker's config that its producers and consumers follow."""

    is_direct: bool
    """Whether producers write straight into the batches that consumers take."""
    when_full: WhenFull
    by_steps: bool
    is_prioritized: bool
    max_policy_lag: int | None

    @classmethod
    def of(cls, config: PlainBufferConfig, has_transform: bool = False) -> SharingRules:
        """Return the rules of a config, with or without a transform."""
        if isinstance(config, BufferConfig):
            is_direct = not config.mask and not has_transform
            return cls(
                is_direct=is_direct,
                when_full=config.when_full if is_direct else "block",
                by_steps=is_direct and config.batch_steps is not None,
                is_prioritized=False,
                max_policy_lag=config.max_policy_lag if is_direct else None,
            )
        is_prioritized = config.sampler == "prioritized"
        return cls(False, "block", False, is_prioritized, None)


@dataclass(frozen=True, slots=True)
class SharedMemoryNames:
    """Names of a worker's shared memory, below /dev/shm."""

    inbox: str
    outbox: str
    """The same as the inbox where producers fill the batches themselves."""
    priorities: str

    @classmethod
    def of(cls, token: str, index: int, rules: SharingRules) -> SharedMemoryNames:
        """Return the names of one of a buffer's workers."""
        public = hashlib.blake2b(token.encode(), digest_size=8).hexdigest()  # the token is secret
        stem = f"{PREFIX}{public}-{index}"
        return cls(f"{stem}-in", f"{stem}-{'in' if rules.is_direct else 'out'}", f"{stem}-prio")


@dataclass(frozen=True, slots=True)
class BufferDescription:
    """The part of a buffer that its handles know."""

    layout: Layout
    """Packed layout of a segment."""
    batch_layout: Layout
    """Packed layout of a row of a batch."""
    rules: SharingRules
    token: str


def push_rows(
    pool: SlotPool,
    rules: SharingRules,
    count: int,
    write: Write,
    steps: Sequence[int] | None,
    wait_s: float | None,
) -> int:
    """Write rows where there is room, and return how many found some.

    Args:
        pool: Pool that a worker's producers write to.
        rules: Rules that say what happens without room.
        count: Number of rows.
        write: Function that writes them, see `SlotPool.fill`.
        steps: Steps of each row, for batches by steps.
        wait_s: Longest wait for room; None waits for ever.
    """
    if not rules.is_direct:
        # The transfer thread empties it at once, unless the buffer itself has no room.
        wait_s = wait_s if wait_s is None else max(wait_s, _MOMENT_S)
        return pool.fill(count, write, steps, deadline=deadline_after(wait_s))
    if rules.when_full == "drop_oldest":
        # There is room at once, but for the moment in which the oldest batch is being written.
        deadline = deadline_after(_MOMENT_S)
        return pool.fill(count, write, steps, when_full="drop_oldest", deadline=deadline)
    waits = rules.when_full == "block"
    deadline = deadline_after(wait_s) if waits else 0.0
    accepted = pool.fill(count, write, steps, deadline=deadline)
    if not waits and accepted < count:
        pool.add("dropped", count - accepted)
    return accepted
