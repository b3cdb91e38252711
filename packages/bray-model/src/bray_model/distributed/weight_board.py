"""The newest weights in one process: for its node in shared memory, for others on request."""

from __future__ import annotations

import logging
import threading

from bray_core.errors import ClosedError, ConfigError
from bray_core.layout import Block
from bray_model.distributed.shared_weights import WeightsWriter
from bray_model.versions.weights import Stamp

logger = logging.getLogger(__name__)

MAX_WAITING_POLLS = 48
"""Polls that wait at a time; further ones are answered at once and come again."""
NUM_THREADS = MAX_WAITING_POLLS + 16
"""Calls that the board's process must run at a time: the rest is for publishers."""


class WeightBoard:
    """Holds one set of weights as a packed block. Thread-safe.

    Args:
        name: of the model, for messages.
        stamp, block: what to begin with.
    """

    def __init__(self, name: str, stamp: Stamp, block: Block) -> None:
        self._stamp = stamp
        self._block = block
        self._name = name
        self._closed = False
        self._num_waiting = 0
        self._num_sent = 0
        self._changed = threading.Condition()
        self._shared: WeightsWriter | None = None
        try:
            self._shared = WeightsWriter(block.nbytes)
            self._shared.publish(stamp, block)
        except ConfigError as error:
            logger.warning("model %s: replicas ask over Ray instead: %s", name, error)

    @property
    def stamp(self) -> Stamp:
        """Of the newest weights."""
        return self._stamp

    @property
    def num_sent(self) -> int:
        """Blocks given to those who asked."""
        return self._num_sent

    def shared(self) -> str | None:
        """Return the file that replicas on this node read; None: there is none."""
        return None if self._shared is None else str(self._shared.path)

    def put(self, stamp: Stamp, block: Block) -> bool:
        """Take weights; False: these are not newer."""
        with self._changed:
            if stamp.sequence <= self._stamp.sequence:
                return False
            self._stamp, self._block = stamp, block
            if self._shared is not None:
                self._shared.publish(stamp, block)
            self._changed.notify_all()
        return True

    def poll(self, held: int, timeout_s: float) -> tuple[Stamp, Block | None]:
        """Wait for another sequence than the one `held`; return the stamp here, and the block.

        The block is None if there is nothing newer: nothing came within `timeout_s`, too many
        wait, or the store was restarted and the caller holds newer weights than it.

        Raises:
            ClosedError: it was closed.
        """
        with self._changed:
            if self._stamp.sequence == held and self._num_waiting < MAX_WAITING_POLLS:
                self._num_waiting += 1
                self._changed.wait_for(
                    lambda: self._closed or self._stamp.sequence != held, timeout_s
                )
                self._num_waiting -= 1
            if self._closed:
                raise ClosedError(f"model {self._name!r}: closed")
            if self._stamp.sequence <= held:
                return self._stamp, None
            self._num_sent += 1
            return self._stamp, self._block

    def close(self) -> None:
        """Wake who waits and remove the file."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._shared is not None:
            self._shared.close()
