"""The relays of one model: the process on each node that hands new weights to its replicas.

Replicas on the store's node read shared memory. Every other node that has replicas gets one relay,
which receives each version once, from the store or from another relay.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import NamedTuple

from bray_core.errors import BrayError
from bray_core.remote.restart_limit import RestartLimit
from bray_model.distributed.store_link import RelayLink, RelayMaker

logger = logging.getLogger(__name__)

WIDTH = 4
"""Relays that the store, or a relay, sends a version to at most."""


class RelayTree:
    """A tree of names with the store, None, at its root. Not thread-safe.

    Args:
        width: children of one parent at most.
    """

    def __init__(self, width: int = WIDTH) -> None:
        self._width = width
        self._children: dict[str | None, list[str]] = {None: []}
        self._parents: dict[str, str | None] = {}

    def join(self, relay: str) -> str | None:
        """Give a relay a parent, the first with room counted from the root; return it.

        A relay that has one already gets another; those below it stay there. A relay below a
        parent that left is not reached from the root until it joins again, so none is put there.
        """
        self._detach(relay)
        queue: deque[str | None] = deque([None])
        while True:
            parent = queue.popleft()
            children = self._children[parent]
            if len(children) < self._width:
                break
            queue.extend(children)
        children.append(relay)
        self._parents[relay] = parent
        self._children.setdefault(relay, [])
        return parent

    def leave(self, relay: str) -> None:
        """Forget a relay; those below it must join again. Harmless if it is unknown."""
        self._detach(relay)
        for child in self._children.pop(relay, ()):
            self._parents.pop(child, None)

    def _detach(self, relay: str) -> None:
        if relay in self._parents:
            self._children[self._parents.pop(relay)].remove(relay)


class WeightLocation(NamedTuple):
    """Where the replicas of a node get new weights."""

    is_here: bool
    """Whether the store itself is on that node."""
    relay: str | None
    """Name of the node's relay; None: ask the store."""


class StoreRelays:
    """Starts, replaces and ends the relays of one store. Thread-safe.

    Args:
        model: Name of the model, for messages.
        maker: Starts a relay on a node.
        width: Largest number of relays that get a version from the same process.
    """

    def __init__(self, model: str, maker: RelayMaker, width: int) -> None:
        self._model = model
        self._maker = maker
        self._tree = RelayTree(width)
        self._lock = threading.Lock()  # the tree, the locks of nodes
        self._node_locks: dict[str, threading.Lock] = {}
        self._relays: dict[str, RelayLink] = {}
        self._limit = RestartLimit()
        self._losses: dict[str, list[float]] = {}
        """Times at which a node lost relays; beyond the limit its replicas ask the store."""

    def __len__(self) -> int:
        return len(self._relays)

    def locate(self, node: str, lost: str | None = None) -> WeightLocation:
        """Return where replicas of a node get new weights; the first one there starts its relay.

        Args:
            node: Node of the replica.
            lost: Name of the relay that the replica does not reach: it is replaced.
        """
        if node == self._maker.here:
            return WeightLocation(True, None)
        with self._lock:
            making = self._node_locks.setdefault(node, threading.Lock())
        with making:  # one relay a node, whoever asks at the same time
            if lost is not None and node in self._relays and self._relays[node].name == lost:
                self._end(self._relays.pop(node))
                self._losses[node] = [*self._recent_losses(node), time.time()]
            if node not in self._relays and not self._start(node):
                return WeightLocation(False, None)
            return WeightLocation(False, self._relays[node].name)

    def _start(self, node: str) -> bool:
        if self._limit.is_exceeded(self._losses.get(node, ()), time.time()):
            logger.warning("model %s: relays of node %s die: none for now", self._model, node)
            return False
        try:
            self._relays[node] = self._maker.make(node)
        except BrayError as error:
            logger.warning("model %s: no relay: %s", self._model, error)
            return False
        return True

    def _recent_losses(self, node: str) -> list[float]:
        return self._limit.recent(self._losses.get(node, ()), time.time())

    def join(self, relay: str, lost: str | None = None) -> str | None:
        """Return which relay a relay shall ask for new weights; None: the store.

        Args:
            relay: Name of the relay that asks.
            lost: Name of its parent, if that is not reached any more.
        """
        with self._lock:
            if lost is not None:
                self._tree.leave(lost)
            return self._tree.join(relay)

    def _end(self, relay: RelayLink) -> None:
        with self._lock:
            self._tree.leave(relay.name)
        try:
            relay.call("close", timeout_s=2.0)
        except BrayError as error:  # it died, which is why it ends
            logger.info("relay %s: %s", relay.name, error)
        relay.close()

    def close(self) -> None:
        """End all relays."""
        for relay in list(self._relays.values()):
            self._end(relay)
        self._relays.clear()
