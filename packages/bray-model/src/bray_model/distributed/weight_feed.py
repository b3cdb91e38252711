"""The way of newer weights to one replica: from its node's shared memory, else on request."""

from __future__ import annotations

import contextlib
import threading
import time

from bray_core.errors import BrayError, NotFoundError
from bray_core.layout import Block
from bray_model.distributed.relays import WeightLocation
from bray_model.distributed.shared_weights import WeightsReader
from bray_model.distributed.store_link import StoreLink, WeightSource
from bray_model.versions.weights import WeightsStamp

_POLL_S = 10.0
_GRACE_S = 20.0
_LOOK_S = 0.001
"""Pause between two looks into shared memory."""
_ALIVE_S = 0.1
"""Time between two checks that its writer lives."""
_RETRY_S = 0.2
_LOCATE_S = 150.0
"""A relay may have to be started first."""


class WeightFeed:
    """Waits for newer weights for one replica. Used by one thread.

    Args:
        link: Way to the store.
        stopped: Ends a wait when it is set.
    """

    def __init__(self, link: StoreLink, stopped: threading.Event) -> None:
        self._link = link
        self._stopped = stopped
        self._source: WeightSource | None = None
        self._reader: WeightsReader | None = None

    @property
    def is_attached(self) -> bool:
        """Whether it knows where to look."""
        return self._source is not None

    @property
    def shares(self) -> bool:
        """Whether it reads shared memory."""
        return self._reader is not None

    def attach(self) -> None:
        """Find out where to look.

        Raises:
            WorkerLostError: the store died.
        """
        self.detach()
        location, source = self._find()
        path = source.call("shared") if location.is_here or location.relay is not None else None
        if path is not None:
            with contextlib.suppress(NotFoundError):  # its writer died just now: ask
                self._reader = WeightsReader(path)
        self._source = source

    def _find(self) -> tuple[WeightLocation, WeightSource]:
        """Return the location of this node, once it answers."""
        lost = None
        for _ in range(3):
            location = WeightLocation(
                *self._link.call("locate", self._link.node, lost, timeout_s=_LOCATE_S)
            )
            if location.relay is None:
                return location, self._link
            try:
                relay = self._link.relay(location.relay)
                relay.call("stamp", timeout_s=_GRACE_S)
            except BrayError:
                lost = location.relay
                continue
            return location, relay
        return WeightLocation(False, None), self._link

    def next(self, held: int) -> tuple[WeightsStamp, Block] | None:
        """Wait for weights of a later sequence than `held`; None: there was nothing for a while.

        Raises:
            WorkerLostError: the store, or the node's relay, died.
        """
        assert self._source is not None
        if self._reader is not None:
            return self._look(self._reader, held)
        stamp, block = self._source.call("poll", held, _POLL_S, timeout_s=_POLL_S + _GRACE_S)
        if block is not None:
            return WeightsStamp(*stamp), block
        if stamp[0] < held:
            self.detach()  # the store was restarted, or a relay is behind
            self._stopped.wait(_RETRY_S)
        return None

    def _look(self, reader: WeightsReader, held: int) -> tuple[WeightsStamp, Block] | None:
        until = time.monotonic() + _ALIVE_S
        while time.monotonic() < until:
            if reader.sequence > held:
                return reader.read()
            if self._stopped.wait(_LOOK_S):
                return None
        if reader.is_orphaned:
            self.detach()
        return None

    def first(self) -> tuple[WeightsStamp, Block]:
        """Return the newest weights."""
        assert self._source is not None
        if self._reader is not None:
            return self._reader.read()
        stamp, block = self._source.call("poll", -1, 0.0)
        return WeightsStamp(*stamp), block

    def detach(self) -> None:
        """Forget where to look; unmap the file."""
        reader, self._reader = self._reader, None
        self._source = None
        if reader is not None:
            reader.close()
