"""The versions of one model: what is current, published, awaited, kept on disk."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bray_core.errors import ClosedError, ConfigError, SpecError, VersionNotFoundError
from bray_core.protocols import Weights
from bray_model.versions.version_store import VersionStore
from bray_model.versions.waiters import VersionWaiters
from bray_model.versions.weights import VersionWeights, WeightsCheck, check_weights


class HoldsCurrent(Protocol):
    """What answers with a version, such as a `BatchExecutor`: assigning another changes it."""

    current: VersionWeights


class ModelVersions:
    """Replaces the version that an executor answers with. Thread-safe.

    Args:
        name: Name of the model, for messages.
        executor: Holds the current version.
        check: Says what its weights must be like; None where they are fixed.
        store: The versions on disk; None where there is no directory for them.
        fixed: Why the weights are fixed, where they are, and the cure; for messages.
    """

    def __init__(
        self,
        name: str,
        executor: HoldsCurrent,
        check: WeightsCheck | None,
        store: VersionStore | None,
        fixed: str,
    ) -> None:
        self._name = name
        self._why_fixed = fixed
        self._executor = executor
        self._store = store
        self._weights_check = check
        self._newest = executor.current.version
        self._waiters = VersionWaiters()
        self._lock = threading.Lock()  # the newest number, closing
        self._closed = False

    @property
    def current(self) -> VersionWeights:
        """What the next batch is answered with."""
        return self._executor.current

    def publish(self, weights: Weights, version: int | None) -> int:
        """Make a copy of weights current; see `Model.publish`."""
        copied = self._copied(weights)
        with self._lock:
            self._check_open()
            number = self._newest + 1 if version is None else version
            if number <= self._newest:
                raise ConfigError(
                    f"version={number}: expected more than {self._newest}, the newest so far"
                )
            self._newest = number
            self._executor.current = VersionWeights(number, copied)
        self._waiters.announce(number)
        return number

    def adopt(self, weights: Weights, version: int) -> None:
        """Make a copy of weights current under their number; see `Model.adopt`."""
        copied = self._copied(weights)
        with self._lock:
            self._check_open()
            self._newest = max(self._newest, version)
            self._executor.current = VersionWeights(version, copied)
        self._waiters.announce(version)

    async def wait(self, version: int, timeout_s: float | None) -> int:
        """Wait for a version; see `Model.wait_version`."""
        return await self._waiters.wait(version, lambda: self.current.version, timeout_s)

    def weights(self) -> tuple[int, Weights]:
        """Return the current version and its weights; see `Model.weights`."""
        current = self.current
        weights = current.held()
        if weights is None:
            raise self._fixed()
        return current.version, weights

    def checkpoint(self) -> Path | None:
        """Write the current version to disk; see `Model.checkpoint`."""
        return None if self._store is None else self._store.save(*self.weights())

    def load(self, version: int) -> int:
        """Make a version from disk current; see `Model.load`."""
        store = self.stored()
        weights = self._read(store, version)
        with self._lock:
            self._check_open()
            self._newest = max(self._newest, version, *store.versions())
            self._executor.current = VersionWeights(version, weights)
        self._waiters.announce(version)
        return version

    def load_newest(self) -> None:
        """Load the newest version on disk, if there is any."""
        if self._store is not None and (versions := self._store.versions()):
            self.load(versions[-1])

    def lend(
        self, version: int, current: VersionWeights, into: VersionStore | None, *, named: bool
    ) -> VersionWeights:
        """Return what a clone of `version` begins with; nothing is read or copied.

        Args:
            version: Version of `current`, or one on disk.
            current: Version that this model holds.
            into: Store of the clone, which gets the file of a version on disk; None where this
                model has no store either.
            named: Whether the clone shall be found again on disk; else memory will do.

        Raises:
            VersionNotFoundError: The version is neither.
        """
        is_current = version == current.version
        if into is None or self._store is None:
            if is_current:
                return current
            raise VersionNotFoundError(
                f"version {version}: model {self._name!r} holds version {current.version} only, "
                "and has no directory to read others from"
            )
        if is_current and not (named and version in self._store.versions()):
            return current
        self._store.link(version, into)
        return self.on_disk(version, into)

    def on_disk(self, version: int, store: VersionStore) -> VersionWeights:
        """Return a version that is read whenever an engine needs it."""
        return VersionWeights(version, None, partial(self._read, store, version))

    def reading(self, version: int, read: Callable[[], Weights]) -> VersionWeights:
        """Return a version that `read` gives whenever an engine needs it."""

        def checked() -> Weights:
            weights = read()
            self._check(weights)
            return weights

        return VersionWeights(version, None, checked)

    def stored(self) -> VersionStore:
        """Return the store.

        Raises:
            ConfigError: the model has no directory.
        """
        if self._store is None:
            raise ConfigError(
                f"model {self._name!r}: has no directory for versions: pass directory=..."
            )
        return self._store

    def close(self) -> None:
        """Fail those who wait with ClosedError and refuse further versions."""
        with self._lock:
            self._closed = True
        self._waiters.fail(ClosedError(f"model {self._name!r}: closed"))

    def _read(self, store: VersionStore, version: int) -> Weights:
        weights = store.load(version)
        if self._weights_check is None:
            raise self._fixed()
        try:
            check_weights(weights, self._weights_check.spec)
        except SpecError as error:
            raise SpecError(
                f"version {version} in {store.path} is of another module: {error}; "
                "use another directory or trial"
            ) from None
        try:
            self._check(weights)
        except SpecError as error:
            raise SpecError(
                f"version {version} in {store.path}: {error}; load another version"
            ) from None
        return weights

    def _check(self, weights: Weights) -> None:
        if self._weights_check is None:
            raise self._fixed()
        self._weights_check(weights)

    def _copied(self, weights: Weights) -> dict[str, np.ndarray[Any, Any]]:
        self._check(weights)
        return {name: np.array(array, order="C") for name, array in weights.items()}

    def _fixed(self) -> ConfigError:
        return ConfigError(f"model {self._name!r}: {self._why_fixed}")

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"model {self._name!r}: closed")
