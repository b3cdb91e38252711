"""The frozen clones that one process has of a remote model."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from functools import partial

from bray_core.errors import AlreadyExistsError, VersionNotFoundError
from bray_core.layout import Layout
from bray_core.protocols import Weights
from bray_model.distributed.blueprint import CloneEntry, ModelBlueprint
from bray_model.distributed.store_link import StoreLink, call_again
from bray_model.model import Model
from bray_model.versions.weights import check_weights


class ReplicaClones:
    """Makes clones known to the store, and builds those that this process uses. Thread-safe.

    Args:
        blueprint: Blueprint of the model.
        model: Model of this process: clones share its engines.
        link: Way to the store, which knows the clones of all processes.
        layout: Layout of the weights.
    """

    def __init__(
        self, blueprint: ModelBlueprint, model: Model, link: StoreLink, layout: Layout
    ) -> None:
        self._blueprint = blueprint
        self._model = model
        self._link = link
        self._layout = layout
        self._lock = threading.Lock()
        self._clones: dict[str, Model] = {}
        self._entries: dict[str, CloneEntry] = {}
        """Clones that were made in this process."""

    def clone_of(self, parent: str, version: int, name: str | None) -> CloneEntry:
        """Make a clone of a clone: of its version, or as `clone` of another."""
        held = self._entry(parent)
        name = name or f"{parent}-v{held.version if version == -1 else version}"
        if version not in (-1, held.version):
            return self.clone(version, name)
        entry = CloneEntry(name=name, version=held.version, block=held.block)
        call_again(self._link, "add_clone", entry)
        self._entries[name] = entry
        return entry

    def clone(self, version: int, name: str | None) -> CloneEntry:
        """Make a frozen clone known to the store; no process builds it before its first use.

        Args:
            version: -1 is the current one; any other than the current is read from disk.
            name: Name of the clone; None: `<model>-v<version>`.

        Raises:
            AlreadyExistsError: the model has a clone of that name.
            VersionNotFoundError: The version is neither current nor on disk.
        """
        current, weights = self._model.weights()
        if version == -1:
            version = current
        entry = CloneEntry(
            name=name or f"{self._blueprint.name}-v{version}", version=version, block=None
        )
        pinned = self._pin(version)
        if not pinned and version != current:
            raise self._not_found(version, current)
        if not pinned or not call_again(self._link, "add_clone", entry):
            if version != current:
                weights = self._blueprint.versions().load(version)
            entry = self._with_block(entry, weights)
            call_again(self._link, "add_clone", entry)
        self._entries[entry.name] = entry
        return entry

    def _with_block(self, entry: CloneEntry, weights: Weights) -> CloneEntry:
        check_weights(weights, self._layout.spec)
        block = self._layout.pack(dict(weights))
        return CloneEntry(name=entry.name, version=entry.version, block=block)

    def _pin(self, version: int) -> bool:
        """Keep a version on disk, whatever the retention; False: it is not there."""
        if self._blueprint.directory is None:
            return False
        try:
            self._blueprint.versions().pin(version)
        except VersionNotFoundError:
            return False
        return True

    def _not_found(self, version: int, current: int) -> VersionNotFoundError:
        on_disk: list[int] = []
        if self._blueprint.directory is not None:
            on_disk = self._blueprint.versions().versions()
        return VersionNotFoundError(
            f"version {version}: model {self._blueprint.name!r} holds version {current}, and on "
            f"disk {on_disk or 'none'}"
        )

    def model(self, name: str) -> Model:
        """Return a clone's model of this process; built when first asked for.

        Raises:
            NotFoundError: the model has no such clone.
        """
        with self._lock:
            if name not in self._clones:
                self._clones[name] = self._build(self._entry(name))
            return self._clones[name]

    def _entry(self, name: str) -> CloneEntry:
        entry: CloneEntry = self._entries.get(name) or call_again(self._link, "clone", name)
        return entry

    def _build(self, entry: CloneEntry) -> Model:
        block = entry.block
        read: Callable[[], Weights]
        if block is None:
            read = partial(self._read, entry.version)
        else:
            read = partial(self._layout.views, block)
        return self._model.clone_reading(read, entry.version, entry.name)

    def _read(self, version: int) -> Weights:
        try:
            return self._blueprint.versions().load(version)
        except VersionNotFoundError:  # the directory is not on a file system of this node
            weights: Weights = call_again(self._link, "read_version", version)
            return weights

    def drop(self, name: str) -> None:
        """Close a clone's model of this process, if there is one."""
        with self._lock:
            self._entries.pop(name, None)
            clone = self._clones.pop(name, None)
        if clone is not None:
            clone.close()

    def restore(self) -> None:
        """Give a store that was restarted the clones that were made here."""
        for entry in list(self._entries.values()):
            with contextlib.suppress(AlreadyExistsError):
                self._link.call("add_clone", entry)

    def close(self) -> None:
        """Close the clones of this process."""
        with self._lock:
            clones = list(self._clones.values())
            self._clones.clear()
        for clone in clones:
            clone.close()
