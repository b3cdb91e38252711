"""Where the newest weights of a remote model lie.

Replicas on the store's node read them from shared memory; others ask for newer ones and wait.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from pathlib import Path

from bray_core.errors import ConfigError
from bray_core.layout import Block
from bray_model.config import ModelConfig
from bray_model.shared_weights import WeightsWriter

logger = logging.getLogger(__name__)

MAX_WAITING_POLLS = 48
"""Polls that wait at a time; further ones are answered at once and come again."""
NUM_THREADS = MAX_WAITING_POLLS + 16
"""Calls that the store's worker must run at a time: the rest is for publishers."""


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """All that a process needs to build a replica, but the weights."""

    name: str
    uid: str
    """Tells a model from a later one of the same name."""
    definition: bytes
    """The module and its example inputs, pickled: the store itself needs no torch."""
    config: ModelConfig
    directory: Path | None


class WeightStore:
    """Holds one version of a model's weights as a packed block. Thread-safe.

    Args:
        blueprint: for replicas.
        version, block: what to begin with, also when the store's worker is restarted.
    """

    def __init__(self, blueprint: Blueprint, version: int, block: Block) -> None:
        self._blueprint = blueprint
        self._version = version
        self._block = block
        self._publisher = ""
        self._num_waiting = 0
        self._changed = threading.Condition()
        self._shared: WeightsWriter | None = None
        try:
            self._shared = WeightsWriter(block.nbytes)
            self._shared.publish(version, block)
        except ConfigError as error:
            logger.warning("model %s: replicas ask over Ray instead: %s", blueprint.name, error)

    def blueprint(self) -> Blueprint:
        """Return what a replica is built from."""
        return self._blueprint

    def uid(self) -> str:
        """Return the model's uid."""
        return self._blueprint.uid

    def shared(self) -> str | None:
        """Return the file that replicas on this node read; None: there is none."""
        return None if self._shared is None else str(self._shared.path)

    def close(self) -> None:
        """Remove the file."""
        if self._shared is not None:
            self._shared.close()

    def publish(self, version: int, block: Block, publisher: str) -> None:
        """Take new weights under the publisher's own number; again is harmless.

        Raises:
            ConfigError: the number is not newer, so another process publishes too.
        """
        with self._changed:
            if (version, publisher) == (self._version, self._publisher):
                return
            if version <= self._version:
                raise ConfigError(
                    f"version={version}: expected more than {self._version}, the newest in the "
                    f"store of model {self._blueprint.name!r}: does another process publish too?"
                )
            self._version, self._block, self._publisher = version, block, publisher
            if self._shared is not None:
                self._shared.publish(version, block)
            self._changed.notify_all()

    def poll(self, held: int, timeout_s: float) -> tuple[int, Block | None]:
        """Wait for another version than the one `held`; return the store's, and its block.

        The block is None if the store has nothing newer: nothing came within `timeout_s`, too
        many wait, or the store was restarted and the caller holds newer weights than it.
        """
        with self._changed:
            if self._version == held and self._num_waiting < MAX_WAITING_POLLS:
                self._num_waiting += 1
                self._changed.wait_for(lambda: self._version != held, timeout_s)
                self._num_waiting -= 1
            return self._version, self._block if self._version > held else None
