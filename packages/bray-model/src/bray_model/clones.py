"""The clones of one model: what they share with it, and where each is found by its name."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, count
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from bray_core.errors import AlreadyExistsError, ClosedError, ConfigError, NotFoundError
from bray_model.batching.executor import BatchExecutor
from bray_model.config import ModelConfig
from bray_model.engines.definition import NetworkDefinition
from bray_model.export_files.manifest import QUANTIZED
from bray_model.versions.retention import Retention
from bray_model.versions.version_store import VersionStore
from bray_model.versions.weights import VersionWeights, WeightsCheck

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_UNUSUAL = re.compile(r"[^A-Za-z0-9._-]")
_MAX_DEFAULT = 80
"""Characters of a name that was not given, so that a number fits behind it."""


class NamedModel(Protocol):
    """What `Clones` needs of a model."""

    name: str

    def close(self) -> None:
        """Free what it holds."""
        ...


ModelT = TypeVar("ModelT", bound=NamedModel)
"""Class of the clones."""


class SharedRuntime:
    """What a model and its clones share: the network, one thread, and the memory for engines.

    The first model, the root, makes it and closes it.

    Args:
        definition: The network; its engine belongs to the runtime from now on.
        config: Batching and memory.
        name: Name of the root, for the thread.
        directory: Whether the root has a directory for versions.

    Raises:
        ConfigError: a directory for the versions of weights that are fixed.
    """

    def __init__(
        self, definition: NetworkDefinition, config: ModelConfig, name: str, *, directory: bool
    ) -> None:
        weights = definition.engine.weights()
        if weights is None and directory:
            raise ConfigError("directory: the weights of an export are fixed: leave it out")
        self.definition = definition
        self.config = config
        self.check_weights = None if weights is None else WeightsCheck(weights)
        """Checks what weights must be like; None where they are fixed."""
        current = VersionWeights(definition.version, weights)
        self.executor = BatchExecutor(definition.engine, definition.signature, config, current)
        """Executor of the root; that of a clone is made from it."""
        self.pool = ThreadPoolExecutor(1, thread_name_prefix=f"bray-model-{name}")
        self.is_closed = False

    def why_fixed(self) -> str:
        """Return why the weights cannot be exchanged, where they cannot, and what to do instead."""
        if self.config.backend in QUANTIZED:
            return (
                f"the weights of backend={self.config.backend!r} are fixed: its graph was made for "
                "them; export the new ones and quantize that"
            )
        return (
            "the weights of this export are fixed (its graph computes with them while it is made): "
            "publish to the model of the torch module and export that again"
        )

    def close(self) -> None:
        """Let the thread end after the batches that it has."""
        self.is_closed = True
        self.pool.shutdown(wait=False)


class Clones(Generic[ModelT]):
    """The clones of one model by name. Thread-safe.

    Args:
        owner: Name of the model that is cloned.
        directory: Directory of the model; a clone's is `clones/<name>` below it. None: no clone is
            kept on disk.
    """

    def __init__(self, owner: str, directory: Path | None) -> None:
        self._owner = owner
        self._folder = None if directory is None else directory / "clones"
        self._lock = threading.Lock()
        self._by_name: dict[str, ModelT] = {}
        self._closed = False

    def create(
        self, name: str | None, default: str, make: Callable[[str, Path | None], ModelT]
    ) -> ModelT:
        """Make a clone under a name that is not taken: the one given, or one from `default`.

        Raises:
            ConfigError: the name is not plain.
            AlreadyExistsError: A clone has the name already.
        """
        with self._lock:
            self._check_open()
            chosen = self._free(default) if name is None else self._checked(name)
            clone = make(chosen, self._directory(chosen))
            self._by_name[chosen] = clone
        return clone

    def get(self, name: str, reopen: Callable[[str, Path | None], ModelT]) -> ModelT:
        """Return the clone of a name; one that is only on disk is reopened.

        Raises:
            ConfigError: the name is not plain.
            NotFoundError: there is none; names those that are.
        """
        _check_name(name)
        with self._lock:
            self._check_open()
            if name not in self._by_name:
                if name not in self._on_disk():
                    known = sorted({*self._by_name, *self._on_disk()})
                    raise NotFoundError(
                        f"clone {name!r}: model {self._owner!r} has {known or 'none'}: "
                        "clone(name=...) makes one; one that was never on disk went with its "
                        "process"
                    )
                self._by_name[name] = reopen(name, self._directory(name))
            return self._by_name[name]

    def remove(self, clone: ModelT) -> None:
        """Forget one that was closed."""
        with self._lock:
            if self._by_name.get(clone.name) is clone:
                del self._by_name[clone.name]

    def close(self) -> None:
        """Close all, and refuse further ones."""
        with self._lock:
            self._closed = True
            clones = list(self._by_name.values())
        for clone in clones:
            clone.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"model {self._owner!r}: closed")

    def _checked(self, name: str) -> str:
        _check_name(name)
        if self._is_taken(name):
            raise AlreadyExistsError(
                f"name: model {self._owner!r} has a clone {name!r} already: get_clone looks it up"
            )
        return name

    def _free(self, default: str) -> str:
        plain = _UNUSUAL.sub("-", default).lstrip("._-")[:_MAX_DEFAULT] or "clone"
        names = chain([plain], (f"{plain}-{number}" for number in count(2)))
        return next(name for name in names if not self._is_taken(name))

    def _is_taken(self, name: str) -> bool:
        directory = self._directory(name)
        return name in self._by_name or (directory is not None and _has_versions(directory))

    def _directory(self, name: str) -> Path | None:
        return None if self._folder is None else self._folder / name

    def _on_disk(self) -> list[str]:
        if self._folder is None or not self._folder.is_dir():
            return []
        return [folder.name for folder in self._folder.iterdir() if _has_versions(folder)]


def _has_versions(directory: Path) -> bool:
    folder = directory / "versions"
    return folder.is_dir() and bool(VersionStore(folder, Retention()).versions())


def _check_name(name: str) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"name: expected letters, digits, '.', '_' or '-' (100 at most), got {name!r}"
        )
