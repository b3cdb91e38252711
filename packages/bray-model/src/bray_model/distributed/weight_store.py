"""Where the newest weights of a remote model lie, and what every process asks about it.

Replicas on the store's node read the weights from shared memory; every other node that has replicas
has one relay, which gets each version once, from the store or from another relay.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from typing import NamedTuple

from bray_core.errors import (
    AlreadyExistsError,
    BrayError,
    ClosedError,
    ConfigError,
    NotFoundError,
    VersionNotFoundError,
    WorkerLostError,
)
from bray_core.layout import Block
from bray_core.protocols import Weights
from bray_core.restart_limit import RestartLimit
from bray_model.distributed.blueprint import Blueprint, CloneEntry
from bray_model.distributed.relay_tree import WIDTH, RelayTree
from bray_model.distributed.store_link import Relay, RelayMaker
from bray_model.distributed.weight_board import WeightBoard
from bray_model.versions.version_store import VersionStore
from bray_model.versions.weights import Stamp

_BEGIN_S = 30.0

logger = logging.getLogger(__name__)


class Outlet(NamedTuple):
    """Where the replicas of a node get new weights."""

    is_here: bool
    """Whether the store itself is on that node."""
    relay: str | None
    """The node's relay; None: ask the store."""


class WeightStore:
    """One model's newest weights, clones and relays. Thread-safe.

    It is empty until `begin`, also after a restart: Ray cannot restart a worker whose factory has
    large arguments. Until then those who publish wait, and replicas are told to come again: one of
    them has what there is to begin with.

    Args:
        name: of the model.
        relays: how to make one.
        width: of the tree of relays.
    """

    def __init__(self, name: str, relays: RelayMaker, width: int = WIDTH) -> None:
        self._name = name
        self._began = threading.Event()
        self._closed = False
        self._incarnation = uuid.uuid4().hex
        self._putting = threading.Lock()
        self._last_put: tuple[Stamp, str] | None = None
        self._clones: dict[str, CloneEntry] = {}
        self._maker = relays
        self._tree = RelayTree(width)
        self._lock = threading.Lock()  # the clones, the tree, the locks of nodes
        self._relays: dict[str, Relay] = {}
        self._node_locks: dict[str, threading.Lock] = {}
        self._limit = RestartLimit()
        self._losses: dict[str, list[float]] = {}
        """When relays of a node were lost; beyond the limit its replicas ask the store."""

    def begin(self, blueprint: Blueprint, stamp: Stamp, block: Block) -> bool:
        """Take what there is to begin with; False: that was done already."""
        with self._putting:
            if self._began.is_set():
                return False
            self._blueprint = blueprint
            self._board = WeightBoard(self._name, stamp, block)
            self._began.set()
        return True

    def incarnation(self) -> str:
        """Return what differs after the store was restarted."""
        return self._incarnation

    def _wait_begun(self) -> None:
        if not self._began.wait(_BEGIN_S):
            raise WorkerLostError(
                f"model {self._name!r}: its store was restarted, and no replica gave it its weights"
            )

    def _check_begun(self) -> WeightBoard:
        if not self._began.is_set():
            raise WorkerLostError(f"model {self._name!r}: its store was restarted and is empty yet")
        return self._board

    def blueprint(self) -> Blueprint:
        """Return what a replica is built from."""
        self._wait_begun()
        return self._blueprint

    def uid(self) -> str:
        """Return the model's uid."""
        return self.blueprint().uid

    def stamp(self) -> Stamp:
        """Return the stamp of the newest weights."""
        return self._check_begun().stamp

    def shared(self) -> str | None:
        """Return the file that replicas on this node read; None: there is none."""
        return self._check_begun().shared()

    def poll(self, held: int, timeout_s: float) -> tuple[Stamp, Block | None]:
        """Wait for other weights than those held: see `WeightBoard.poll`."""
        return self._check_begun().poll(held, timeout_s)

    def stats(self) -> dict[str, int]:
        """Return the number of blocks sent, of relays and of clones."""
        return {
            "blocks_sent": self._board.num_sent if self._began.is_set() else 0,
            "relays": len(self._relays),
            "clones": len(self._clones),
        }

    def put(self, stamp: Stamp, block: Block, publisher: str) -> None:
        """Take new weights under the publisher's own stamp; again is harmless.

        Raises:
            ConfigError: the stamp is not newer, so another process publishes too.
        """
        self._wait_begun()
        with self._putting:
            if (stamp, publisher) == self._last_put:
                return
            if not self._board.put(stamp, block):
                raise ConfigError(
                    f"version={stamp.version}: model {self._name!r} took version "
                    f"{self._board.stamp.version} meanwhile: does another process publish too?"
                )
            self._last_put = (stamp, publisher)

    def add_clone(self, entry: CloneEntry) -> bool:
        """Keep a clone for all processes; False: the store needs its weights, they are not on disk.

        Raises:
            AlreadyExistsError: the model has a clone of that name.
        """
        self._wait_begun()
        with self._lock:
            if entry.name in self._clones:
                raise AlreadyExistsError(
                    f"name: model {self._name!r} has a clone {entry.name!r} already: "
                    "get_clone looks it up"
                )
            if entry.block is None and not self._is_on_disk(entry.version):
                return False
            self._clones[entry.name] = entry
        return True

    def clone(self, name: str) -> CloneEntry:
        """Look up a clone.

        Raises:
            NotFoundError: there is none; names those that there are.
        """
        with self._lock:
            if name not in self._clones:
                raise NotFoundError(
                    f"name: model {self._name!r} has no clone {name!r}; "
                    f"it has {sorted(self._clones) or 'none'}"
                )
            return self._clones[name]

    def clone_version(self, name: str) -> int:
        """Return a clone's version; raises as `clone` does."""
        return self.clone(name).version

    def remove_clone(self, name: str) -> None:
        """Forget a clone; again is harmless."""
        with self._lock:
            self._clones.pop(name, None)

    def read_version(self, version: int) -> Weights:
        """Read a version from disk, for a process that does not see the model's directory.

        Raises:
            VersionNotFoundError: it is not there.
        """
        if (store := self._versions()) is None:
            raise VersionNotFoundError(f"version {version}: model {self._name!r} has no directory")
        return store.load(version)

    def _versions(self) -> VersionStore | None:
        blueprint = self.blueprint()
        return None if blueprint.directory is None else blueprint.versions()

    def _is_on_disk(self, version: int) -> bool:
        store = self._versions()
        return store is not None and version in store.versions()

    def outlet(self, node: str, lost: str | None = None) -> Outlet:
        """Return where replicas of a node get new weights; the first one there starts its relay.

        Args:
            node: the replica's.
            lost: the relay that it does not reach: it is replaced.

        Raises:
            ClosedError: the model was closed.
        """
        if self._closed:
            raise ClosedError(f"model {self._name!r}: closed")
        self._check_begun()
        if node == self._maker.here:
            return Outlet(True, None)
        with self._lock:
            making = self._node_locks.setdefault(node, threading.Lock())
        with making:  # one relay a node, whoever asks at the same time
            if lost is not None and node in self._relays and self._relays[node].name == lost:
                self._end(self._relays.pop(node))
                self._losses[node] = [*self._recent_losses(node), time.time()]
            if node not in self._relays:
                if self._limit.is_exceeded(self._losses.get(node, ()), time.time()):
                    logger.warning(
                        "model %s: relays of node %s die: none for now", self._name, node
                    )
                    return Outlet(False, None)
                try:
                    self._relays[node] = self._maker.make(node)
                except BrayError as error:
                    logger.warning("model %s: no relay: %s", self._name, error)
                    return Outlet(False, None)
            return Outlet(False, self._relays[node].name)

    def _recent_losses(self, node: str) -> list[float]:
        return self._limit.recent(self._losses.get(node, ()), time.time())

    def join(self, relay: str, lost: str | None = None) -> str | None:
        """Return which relay a relay shall ask for new weights; None: the store.

        Args:
            relay: who asks.
            lost: its parent, if that is not reached any more.
        """
        with self._lock:
            if lost is not None:
                self._tree.leave(lost)
            return self._tree.join(relay)

    def _end(self, relay: Relay) -> None:
        with self._lock:
            self._tree.leave(relay.name)
        try:
            relay.call("close", timeout_s=2.0)
        except BrayError as error:  # it died, which is why it ends
            logger.info("relay %s: %s", relay.name, error)
        relay.close()

    def close(self) -> None:
        """End the relays, wake who waits and remove the file."""
        self._closed = True
        for relay in list(self._relays.values()):
            self._end(relay)
        self._relays.clear()
        if self._began.is_set():
            self._board.close()
