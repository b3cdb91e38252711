"""Where the newest weights of a remote model lie, and what every process asks about it.

Replicas on the store's node read the weights from shared memory; those on other nodes get them from
the relay of their node.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid

from bray_core.errors import (
    AlreadyExistsError,
    ClosedError,
    ConfigError,
    NotFoundError,
    VersionNotFoundError,
    WorkerLostError,
)
from bray_core.layout import Block
from bray_core.protocols import Weights
from bray_model.distributed.blueprint import CloneEntry, ModelBlueprint
from bray_model.distributed.relays import WIDTH, StoreRelays, WeightLocation
from bray_model.distributed.shared_weights import WeightsWriter
from bray_model.distributed.store_link import RelayMaker
from bray_model.versions.version_store import VersionStore
from bray_model.versions.weights import WeightsStamp

_BEGIN_S = 30.0
_CLONES_S = 5.0
"""Time in which those who made clones tell them to a store that took the place of a dead one."""
MAX_WAITING_POLLS = 48
"""Polls that wait at a time; further ones are answered at once and come again."""
NUM_THREADS = MAX_WAITING_POLLS + 16
"""Calls that the board's process must run at a time: the rest is for publishers."""

logger = logging.getLogger(__name__)


class WeightBoard:
    """Holds one set of weights as a packed block. Thread-safe.

    Args:
        name: Name of the model, for messages.
        stamp, block: Weights to begin with.
    """

    def __init__(self, name: str, stamp: WeightsStamp, block: Block) -> None:
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
    def stamp(self) -> WeightsStamp:
        """Stamp of the newest weights."""
        return self._stamp

    @property
    def num_sent(self) -> int:
        """Blocks given to those who asked."""
        return self._num_sent

    def shared(self) -> str | None:
        """Return the file that replicas on this node read; None: there is none."""
        return None if self._shared is None else str(self._shared.path)

    def put(self, stamp: WeightsStamp, block: Block) -> bool:
        """Take weights; False: these are not newer."""
        with self._changed:
            if stamp.sequence <= self._stamp.sequence:
                return False
            self._stamp, self._block = stamp, block
            if self._shared is not None:
                self._shared.publish(stamp, block)
            self._changed.notify_all()
        return True

    def poll(self, held: int, timeout_s: float) -> tuple[WeightsStamp, Block | None]:
        """Wait for another sequence than the one `held`; return the stamp here, and the block.

        The block is None if there is nothing newer: nothing came within `timeout_s`, too many
        wait, or the store was restarted and the caller holds newer weights than it.

        Raises:
            ClosedError: The board was closed.
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


class WeightStore:
    """One model's newest weights, clones and relays. Thread-safe.

    It is empty until `begin`, also after a restart: Ray cannot restart a worker whose factory has
    large arguments. Until then those who publish wait, and replicas are told to come again: one of
    them has what there is to begin with.

    Args:
        name: Name of the model.
        relays: Starts a relay on a node.
        width: Largest number of relays that get a version from the same process.
    """

    def __init__(self, name: str, relays: RelayMaker, width: int = WIDTH) -> None:
        self._name = name
        self._began = threading.Event()
        self._closed = False
        self._incarnation = uuid.uuid4().hex
        self._putting = threading.Lock()
        self._last_put: tuple[WeightsStamp, str] | None = None
        self._clones: dict[str, CloneEntry] = {}
        self._relays = StoreRelays(name, relays, width)
        self._lock = threading.Condition()  # the clones
        self._all_told_s = 0.0
        """When all clones are known again, by `time.monotonic`."""

    def begin(
        self,
        blueprint: ModelBlueprint,
        stamp: WeightsStamp,
        block: Block,
        is_restarted: bool = False,
    ) -> bool:
        """Take what there is to begin with; False: that was done already.

        Args:
            blueprint: Blueprint of the model.
            stamp: Stamp of the weights.
            block: Weights to begin with.
            is_restarted: Whether a store before this one died, whose clones are told anew.
        """
        with self._putting:
            if self._began.is_set():
                return False
            self._all_told_s = time.monotonic() + _CLONES_S * is_restarted
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

    def blueprint(self) -> ModelBlueprint:
        """Return what a replica is built from."""
        self._wait_begun()
        return self._blueprint

    def uid(self) -> str:
        """Return the model's uid."""
        return self.blueprint().uid

    def stamp(self) -> WeightsStamp:
        """Return the stamp of the newest weights."""
        return self._check_begun().stamp

    def shared(self) -> str | None:
        """Return the file that replicas on this node read; None: there is none."""
        return self._check_begun().shared()

    def poll(self, held: int, timeout_s: float) -> tuple[WeightsStamp, Block | None]:
        """Wait for other weights than those held: see `WeightBoard.poll`."""
        return self._check_begun().poll(held, timeout_s)

    def stats(self) -> dict[str, int]:
        """Return the number of blocks sent, of relays and of clones."""
        return {
            "blocks_sent": self._board.num_sent if self._began.is_set() else 0,
            "relays": len(self._relays),
            "clones": len(self._clones),
        }

    def put(self, stamp: WeightsStamp, block: Block, publisher: str) -> None:
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
            self._lock.notify_all()
        return True

    def clone(self, name: str) -> CloneEntry:
        """Look up a clone.

        Raises:
            NotFoundError: there is none; names those that there are.
        """
        self._wait_begun()
        left_s = max(0.0, self._all_told_s - time.monotonic())
        with self._lock:
            self._lock.wait_for(lambda: name in self._clones, left_s)
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
            VersionNotFoundError: The version is not on disk.
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

    def locate(self, node: str, lost: str | None = None) -> WeightLocation:
        """Return where replicas of a node get new weights; see `StoreRelays.locate`.

        Raises:
            ClosedError: the model was closed.
        """
        if self._closed:
            raise ClosedError(f"model {self._name!r}: closed")
        self._check_begun()
        return self._relays.locate(node, lost)

    def join(self, relay: str, lost: str | None = None) -> str | None:
        """Return which relay a relay shall ask for new weights; see `StoreRelays.join`."""
        return self._relays.join(relay, lost)

    def close(self) -> None:
        """End the relays, wake who waits and remove the file."""
        self._closed = True
        self._relays.close()
        if self._began.is_set():
            self._board.close()
