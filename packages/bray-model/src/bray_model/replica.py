"""A plain model in this process that follows a store, and the frozen clones made of it."""

from __future__ import annotations

import contextlib
import logging
import threading
import uuid
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bray_core.errors import (
    AlreadyExistsError,
    BrayError,
    ClosedError,
    ConfigError,
    DeadlineError,
    VersionNotFoundError,
    WorkerLostError,
)
from bray_core.layout import Block, Layout
from bray_core.protocols import Weights
from bray_model.blueprint import Blueprint, CloneEntry
from bray_model.model import Model
from bray_model.stamp import Stamp
from bray_model.store_link import StoreLink
from bray_model.versions import VersionStore
from bray_model.waiters import VersionWaiters
from bray_model.weight_feed import WeightFeed
from bray_model.weights import check_weights, weights_spec

_RETRY_S = 0.2
_PUBLISH_S = 60.0
_REMEMBERED = 16

logger = logging.getLogger(__name__)


class Replica:
    """Publishes to its store and takes what others publish, in a thread. Thread-safe.

    Args:
        blueprint: of the model.
        model: of this process; owned from now on.
        link: to the store.
        stamp: of the weights that `model` holds; None: they are taken from the store first.
    """

    def __init__(
        self, blueprint: Blueprint, model: Model, link: StoreLink, stamp: Stamp | None
    ) -> None:
        self.blueprint = blueprint
        self.model = model
        self._link = link
        self._spec = weights_spec(model.weights()[1])
        self._layout = Layout(self._spec)
        self._id = uuid.uuid4().hex
        self._updating = threading.Lock()
        self._applying = threading.Lock()
        self._cloning = threading.Lock()
        self._clones: dict[str, Model] = {}
        self._entries: dict[str, CloneEntry] = {}
        self._arrivals = VersionWaiters()
        self._stopped = threading.Event()
        self._feed = WeightFeed(link, self._stopped)
        self._incarnation = ""
        if stamp is None:
            link.call("uid")  # it waits until a store that was restarted has its weights
            self._incarnation = link.call("incarnation")
            self._feed.attach()
            stamp, block = self._feed.first()
            model.adopt(self._layout.views(block), stamp.version)
        self._stamp = stamp
        self._history = deque([stamp], maxlen=_REMEMBERED)
        self._thread = threading.Thread(
            target=self._follow, name=f"bray-model-{model.name}-follow", daemon=True
        )
        self._thread.start()

    @property
    def stamp(self) -> Stamp:
        """Of the weights that the model holds, or is about to take."""
        return self._stamp

    @property
    def shares(self) -> bool:
        """Whether new weights come by shared memory."""
        return self._feed.shares

    def sequence_of(self, version: int) -> int:
        """Return the latest sequence that this replica took `version` with; 0 if long ago."""
        return max((s.sequence for s in list(self._history) if s.version == version), default=0)

    async def wait_sequence(self, sequence: int, timeout_s: float) -> None:
        """Wait until the model holds weights of `sequence` or later. Raises DeadlineError."""
        if self._stamp.sequence >= sequence:
            return
        try:
            await self._arrivals.wait(sequence, lambda: self._stamp.sequence, timeout_s)
        except DeadlineError:
            raise DeadlineError(
                f"model {self.blueprint.name!r}: this replica is behind by "
                f"{sequence - self._stamp.sequence} updates, and was for {timeout_s:g} s"
            ) from None

    def publish(self, weights: Weights) -> Stamp:
        """Give new weights to the store and take them; return their stamp.

        Raises:
            SpecError: a name, shape or dtype differs; names the parameter.
            ConfigError: another process published meanwhile.
            WorkerLostError: the store died and was not back in time.
        """
        check_weights(weights, self._spec)
        block = self._layout.pack(dict(weights))
        with self._updating:
            return self._update(self._stamp.after_publish(), block)

    def load(self, version: int) -> Stamp:
        """Make a version from disk current everywhere; errors as in `Model.load`, `publish`."""
        store = self._versions()
        weights = store.load(version)
        check_weights(weights, self._spec)
        block = self._layout.pack(dict(weights))
        with self._updating:
            return self._update(self._stamp.after_load(version, store.versions()[-1]), block)

    def checkpoint(self) -> Path | None:
        """Write this replica's version; None where the model has no directory."""
        return None if self.blueprint.directory is None else self._versions().save(*self.held())

    def pin(self, version: int, pinned: bool) -> None:
        """Keep a version on disk whatever `retention` says, or no longer; as `Model.pin`."""
        self._versions().pin(version, pinned)

    def held(self) -> tuple[int, Weights]:
        """Return this replica's version and weights."""
        return self.model.weights()

    def _versions(self) -> VersionStore:
        directory = self.blueprint.directory
        if directory is None:
            raise ConfigError(
                f"model {self.blueprint.name!r}: has no directory for versions: pass directory=..."
            )
        return VersionStore(directory / "versions", self.blueprint.config.retention)

    def _update(self, stamp: Stamp, block: Block) -> Stamp:
        try:
            self._link.call("put", stamp, block, self._id, timeout_s=_PUBLISH_S)
        except WorkerLostError:
            logger.warning("model %s: its store died; publishing again", self.model.name)
            self._link.wait_ready(_PUBLISH_S)
            self._update_again(stamp, block)
        self._apply(stamp, block)
        return stamp

    def _update_again(self, stamp: Stamp, block: Block) -> None:
        try:
            self._link.call("put", stamp, block, self._id, timeout_s=_PUBLISH_S)
        except ConfigError:
            # A replica may have given the store these very weights, from shared memory.
            held, other = self._link.call("poll", -1, 0.0)
            if held != stamp or other is None or (other != block).any():
                raise

    def _apply(self, stamp: Stamp, block: Block) -> None:
        with self._applying:
            if stamp.sequence <= self._stamp.sequence:
                return
            self._history.append(stamp)  # first: an answer may ask for it at once
            self.model.adopt(self._layout.views(block), stamp.version)
            self._stamp = stamp
        self._arrivals.announce(stamp.sequence)

    def clone_of(self, parent: str, version: int, name: str | None) -> CloneEntry:
        """Make a clone of a clone: of its version, or as `clone` of another."""
        held = self._entry(parent)
        name = name or f"{parent}-v{held.version if version == -1 else version}"
        if version not in (-1, held.version):
            return self.clone(version, name)
        entry = CloneEntry(name=name, version=held.version, block=held.block)
        self._link.call("add_clone", entry)
        self._entries[name] = entry
        return entry

    def clone(self, version: int, name: str | None) -> CloneEntry:
        """Make a frozen clone known to the store; no process builds it before its first use.

        Args:
            version: -1 is the current one; any other than the current is read from disk.
            name: by default `<model>-v<version>`.

        Raises:
            AlreadyExistsError: the model has a clone of that name.
            VersionNotFoundError: it is neither current nor on disk.
        """
        with self._applying:
            current, weights = self.model.weights()
        if version == -1:
            version = current
        entry = CloneEntry(
            name=name or f"{self.blueprint.name}-v{version}", version=version, block=None
        )
        pinned = self._pin(version)
        if not pinned and version != current:
            raise self._not_found(version, current)
        if not pinned or not self._link.call("add_clone", entry):
            if version != current:
                weights = self._versions().load(version)
            entry = self._with_block(entry, weights)
            self._link.call("add_clone", entry)
        self._entries[entry.name] = entry
        return entry

    def _with_block(self, entry: CloneEntry, weights: Weights) -> CloneEntry:
        check_weights(weights, self._spec)
        block = self._layout.pack(dict(weights))
        return CloneEntry(name=entry.name, version=entry.version, block=block)

    def _pin(self, version: int) -> bool:
        """Keep a version on disk, whatever the retention; False: it is not there."""
        if self.blueprint.directory is None:
            return False
        try:
            self._versions().pin(version)
        except VersionNotFoundError:
            return False
        return True

    def _not_found(self, version: int, current: int) -> VersionNotFoundError:
        on_disk: list[int] = []
        if self.blueprint.directory is not None:
            on_disk = self._versions().versions()
        return VersionNotFoundError(
            f"version {version}: model {self.blueprint.name!r} holds version {current}, and on "
            f"disk {on_disk or 'none'}"
        )

    def clone_model(self, name: str) -> Model:
        """Return a clone's model of this process; built when first asked for.

        Raises:
            NotFoundError: the model has no such clone.
        """
        with self._cloning:
            if name not in self._clones:
                self._clones[name] = self._build(self._entry(name))
            return self._clones[name]

    def _entry(self, name: str) -> CloneEntry:
        entry: CloneEntry = self._entries.get(name) or self._link.call("clone", name)
        return entry

    def _build(self, entry: CloneEntry) -> Model:
        block = entry.block
        read: Callable[[], Weights]
        if block is None:
            read = partial(self._read, entry.version)
        else:
            read = partial(self._layout.views, block)
        return self.model.clone_reading(read, entry.version, entry.name)

    def _read(self, version: int) -> Weights:
        try:
            return self._versions().load(version)
        except VersionNotFoundError:  # the directory is not on a file system of this node
            weights: Weights = self._link.call("read_version", version)
            return weights

    def drop_clone(self, name: str) -> None:
        """Close a clone's model of this process, if there is one."""
        with self._cloning:
            self._entries.pop(name, None)
            clone = self._clones.pop(name, None)
        if clone is not None:
            clone.close()

    def _follow(self) -> None:
        while not self._stopped.is_set() and self._link.is_connected:
            try:
                self._step()
            except (WorkerLostError, DeadlineError, ClosedError) as error:
                self._feed.detach()
                logger.info("model %s: store not reached: %s", self.model.name, error)
                if not self._link.exists():
                    return
                self._stopped.wait(_RETRY_S)
            except Exception:  # the thread's boundary: it must go on
                if self._stopped.is_set() or not self._link.is_connected:
                    return
                logger.exception("model %s: following its store failed", self.model.name)
                self._stopped.wait(_RETRY_S)

    def _step(self) -> None:
        if not self._feed.is_attached:
            incarnation = self._link.call("incarnation")
            if incarnation != self._incarnation:
                self._restore_store()
            self._incarnation = incarnation
            self._feed.attach()
        if update := self._feed.next(self._stamp.sequence):
            self._apply(*update)

    def _restore_store(self) -> None:
        """A store that was restarted is empty: give it what is held here."""
        with self._applying:  # weights and stamp of one moment
            stamp, (_, weights) = self._stamp, self.model.weights()
        block = self._layout.pack(dict(weights))
        if not self._link.call("begin", self.blueprint, stamp, block, timeout_s=_PUBLISH_S):
            self._give(stamp, block)
        for entry in list(self._entries.values()):
            with contextlib.suppress(AlreadyExistsError):
                self._link.call("add_clone", entry)

    def _give(self, stamp: Stamp, block: Block) -> None:
        """Let the store have weights that are newer than its own."""
        if self._link.call("stamp")[0] < stamp.sequence:
            try:
                self._link.call("put", stamp, block, self._id, timeout_s=_PUBLISH_S)
            except ConfigError as error:
                logger.info("model %s: another replica was quicker: %s", self.model.name, error)

    def close(self) -> None:
        """Stop following; close the model and its clones."""
        self._stopped.set()
        with self._cloning:
            models = [*self._clones.values(), self.model]
            self._clones.clear()
        for model in models:
            model.close()
        if self._thread is not threading.current_thread():
            self._thread.join(5.0)
            if not self._thread.is_alive():
                with contextlib.suppress(BrayError):
                    self._feed.detach()
