"""A thread between shared memory and a plain buffer: segments in, batches out."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections import deque
from typing import Any

import numpy as np

from bray_buffer.queue.buffer import Buffer
from bray_buffer.replay.replay_buffer import ReplayBuffer
from bray_buffer.shared.slot_pool import SlotPool, copying
from bray_core import metrics
from bray_core.errors import BrayError, ClosedError, DeadlineError, SpecError
from bray_core.layout import Block, Packed

logger = logging.getLogger(__name__)

PRIORITY = np.dtype([("key", "<i8"), ("priority", "<f8")])
"""A row of the pool of priorities."""
_FIRST_PAUSE_S = 0.00005
_LONGEST_PAUSE_S = 0.001
_MAX_FAILURES = 16


class TransferThread:
    """Feeds a plain buffer from one pool, and fills another with its batches.

    Args:
        buffer: A `ReplayBuffer` or another plain buffer, which this thread alone uses.
        inbox: Pool that producers write segments to.
        outbox: Pool that consumers take batches from; a row is one sample of `buffer.batch_layout`.
        priorities: Pool that consumers write priorities to (`PRIORITY`); None where there are none.
        is_successor: Whether priorities may come that are of items of a worker before this one.
    """

    def __init__(
        self,
        buffer: Any,
        inbox: SlotPool,
        outbox: SlotPool,
        priorities: SlotPool | None,
        *,
        is_successor: bool = False,
    ) -> None:
        self._buffer = buffer
        self._inbox = inbox
        self._outbox = outbox
        self._priorities = priorities
        self._is_successor = is_successor
        self._version = 0
        self._left: Packed | None = None
        """Segments that the buffer had no room for yet."""
        self._failures: deque[str] = deque(maxlen=_MAX_FAILURES)
        self._stopped = threading.Event()
        self.lock = threading.Lock()
        """Held while the buffer is used: for whoever saves it meanwhile."""
        self._thread = threading.Thread(target=self._run, name="bray-transfer", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._stopped.is_set():
            try:
                with self.lock:
                    self._learn_version()
                    moved = self._set_priorities() | self._take_in() | self._give_out()
            except ClosedError:
                return
            except Exception as error:  # noqa: BLE001  the thread's edge: told to a consumer
                # As text: a traceback that is kept would keep the batches of its frames.
                logger.error(
                    "buffer: its worker goes on after an error: %s", traceback.format_exc()
                )
                self._fail(error)
                moved = False
            if moved:
                pause_s = _FIRST_PAUSE_S
            else:
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _learn_version(self) -> None:
        version = self._inbox.word("policy_version")
        if version != self._version and isinstance(self._buffer, Buffer):
            self._version = version
            self._buffer.set_policy_version(version)

    def _take_in(self) -> bool:
        if self._left is None:
            if self._inbox.is_empty():
                return False
            block = self._inbox.take(0.0, partial=True)
            if block is None:
                return False
            self._left = Packed(self._buffer.layout, block)
        segments, self._left = self._left, None  # what raises an error is gone
        accepted = self._buffer.push(segments)
        if accepted < len(segments.block):
            self._left = Packed(segments.layout, segments.block[accepted:])
        # If this process dies, its successor counts these as lost.
        self._inbox.set_word("held", int(self._buffer.stats()["queued"]))
        return bool(accepted > 0)

    def _give_out(self) -> bool:
        if not self._outbox.has_room():
            return False
        if isinstance(self._buffer, ReplayBuffer) and self._buffer.fills_memory:
            return self._draw(self._buffer)
        try:
            batch = self._buffer.pop(0.0)
        except DeadlineError:
            return False
        rows = len(batch.block)
        if rows > self._outbox.shape.rows:
            raise SpecError(
                f"transform: expected at most {self._outbox.shape.rows} rows, those that a batch "
                f"of zeros gave, got {rows}"
            )
        self._outbox.fill(rows, copying(batch.block), seal=True)
        return True

    def _draw(self, replay: ReplayBuffer) -> bool:
        if not replay.is_ready():
            return False

        def write(rows: Block, _: int) -> None:
            replay.pop(0.0, out=rows)

        return self._outbox.fill(self._outbox.shape.rows, write, seal=True) > 0

    def _set_priorities(self) -> bool:
        if self._priorities is None or self._priorities.is_empty():
            return False
        block = self._priorities.take(0.0, partial=True)
        if block is None:
            return False
        rows = block.view(PRIORITY)[:, 0]
        if self._is_successor:
            is_known = self._buffer.knows(rows["key"])
            if lost := len(rows) - int(is_known.sum()):
                metrics.record("buffer/lost_priorities", lost, kind="count")
            rows = rows[is_known]
        self._buffer.update_priorities(rows["key"].copy(), rows["priority"].copy())
        return True

    def _fail(self, error: Exception) -> None:
        known = isinstance(error, BrayError)
        self._failures.append(str(error) if known else f"{type(error).__name__}: {error}")
        metrics.record("buffer/failures", 1, kind="count")
        self._outbox.add("failures", 1)

    def next_failure(self) -> str | None:
        """Return the oldest error that was not told yet; None if there is none."""
        return self._failures.popleft() if self._failures else None

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._thread.join()
