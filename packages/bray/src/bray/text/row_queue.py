"""A queue of replays of token rows: what the sampler hands to the trainer."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

import numpy as np

from bray.text.samples import TextSample, TokenRow
from bray_core import nested
from bray_core.errors import ClosedError, ConfigError, DeadlineError
from bray_core.layout import Layout, Packed

SUPERVISED = -1
"""Group of a demonstrated row, which is learnt and not compared with others."""


def row_layout(length: int) -> Layout:
    """Return the packed layout of one row of at most `length` tokens.

    Args:
        length: longest row of a replay, in tokens.
    """
    example = {
        "tokens": np.zeros(length, np.int32),
        "mask": np.zeros(length, np.bool_),
        "log_prob": np.zeros(length, np.float32),
        "policy_version": np.zeros(length, np.int32),
        "length": np.int32(0),
        "reward": np.float32(0),
        "group": np.int32(0),
        "sample": np.int32(0),
    }
    return Layout(nested.spec(example))


def pack_samples(samples: Sequence[TextSample]) -> Packed:
    """Return the rows of samples as one replay, `[B, nbytes]`, padded at the right.

    Args:
        samples: the samples, each of one row or more.

    Raises:
        ConfigError: there is no row.
    """
    listed = [(row, number, one) for number, one in enumerate(samples) for row in one.rows]
    if not listed:
        raise ConfigError("samples: expected at least one row of tokens, got none")
    longest = max(len(row) for row, _, _ in listed)
    layout = row_layout(-(-longest // 8) * 8)
    block = layout.empty(len(listed))
    views = layout.views(block)
    assert isinstance(views, dict), "the spec is a dict"
    for place, (row, number, sample) in enumerate(listed):
        size = len(row)
        views["tokens"][place, :size] = row.tokens
        views["mask"][place, :size] = row.mask
        views["log_prob"][place, :size] = row.log_prob
        views["policy_version"][place, :size] = row.version
        # Tokens that nobody sampled count as of the same version, so that the mean lag is theirs.
        views["policy_version"][place, :size][~row.mask] = row.oldest_version
        views["length"][place] = size
        views["reward"][place] = sample.reward
        views["group"][place] = sample.group
        views["sample"][place] = number
    return Packed(layout, block)


def pack_demonstrations(rows: Sequence[TokenRow], version: int) -> Packed:
    """Return demonstrated rows as one replay, `[B, nbytes]`.

    Args:
        rows: the rows.
        version: version of the weights that they train, so that they count as fresh.
    """
    packed = pack_samples([TextSample(rows=(row,), reward=0.0, group=SUPERVISED) for row in rows])
    views = packed.layout.views(packed.block)
    assert isinstance(views, dict), "the spec is a dict"
    views["policy_version"][:] = version
    return packed


class RowQueue:
    """A bounded queue of replays in this process. Thread-safe.

    Args:
        capacity: number of replays that wait at most; a further `put` waits.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._replays: deque[Packed] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._layout = row_layout(8)

    @property
    def layout(self) -> Layout:
        """Layout of the newest replay: rows of other replays may be longer or shorter."""
        return self._layout

    def put(self, replay: Packed, timeout_s: float | None = None) -> None:
        """Add a replay as soon as there is room.

        Raises:
            DeadlineError: there was no room in time.
            ClosedError: the queue was closed.
        """
        with self._changed:
            has_room = self._changed.wait_for(
                lambda: self._is_closed or len(self._replays) < self._capacity, timeout_s
            )
            if self._is_closed:
                raise ClosedError("rows: the queue is closed")
            if not has_room:
                raise DeadlineError(f"rows: no room within {timeout_s} s: training is behind")
            self._replays.append(replay)
            self._layout = replay.layout
            self._changed.notify_all()

    def pop(self, timeout_s: float | None = None) -> Packed:
        """Return the oldest replay.

        Raises:
            DeadlineError: there was none in time.
            ClosedError: the queue was closed.
        """
        began = monotonic()
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or bool(self._replays), timeout_s)
            if self._replays:
                replay = self._replays.popleft()
                self._changed.notify_all()
                return replay
            if self._is_closed:
                raise ClosedError("rows: the queue is closed")
        raise DeadlineError(f"rows: no replay within {monotonic() - began:.1f} s")

    def push(self, *segments: Any, wait: bool = False, timeout_s: float | None = None) -> int:
        """Add replays; return how many there was room for.

        Args:
            segments: packed replays.
            wait: whether to wait for room.
            timeout_s: longest time to wait for each.
        """
        accepted = 0
        for replay in segments:
            with suppress(DeadlineError):
                self.put(replay, timeout_s if wait else 0.0)
                accepted += 1
        return accepted

    def stats(self) -> dict[str, float]:
        """Return the number of replays that wait."""
        return {"size": float(len(self._replays))}

    def __len__(self) -> int:
        return len(self._replays)

    def close(self) -> None:
        """Wake every waiter with ClosedError."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
