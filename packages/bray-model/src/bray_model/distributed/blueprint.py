"""What every process of the cluster knows about a remote model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from bray_core.errors import ConfigError
from bray_core.layout import Block
from bray_core.settings.choice import check_choice
from bray_model.config import ModelConfig
from bray_model.signature import Signature
from bray_model.versions.version_store import VersionStore

Placement: TypeAlias = Literal["caller", "workers", "proxy"]
"""Where rows are computed: in the process that calls; in inference workers; in those, but joined
into batches in the process that calls."""

_PLACEMENTS = ("caller", "workers", "proxy")


@dataclass(frozen=True, kw_only=True)
class ModelBlueprint:
    """All that a process needs to use a model or to build a replica, but the weights."""

    name: str
    uid: str
    """Tells a model from a later one of the same name."""
    definition: bytes
    """The module and its example inputs, pickled: the store itself needs no torch."""
    signature: Signature
    config: ModelConfig
    directory: Path | None
    placement: Placement = "caller"
    num_workers: int = 1
    token: str = ""
    """Token that the inference workers ask for."""

    def versions(self) -> VersionStore:
        """Return the versions on disk.

        Raises:
            ConfigError: the model has no directory.
        """
        if self.directory is None:
            raise ConfigError(
                f"model {self.name!r}: has no directory for versions: pass directory=..."
            )
        return VersionStore(self.directory / "versions", self.config.retention)


@dataclass(frozen=True, kw_only=True)
class CloneEntry:
    """A frozen version with a name of its own, served by the replicas and workers of its model."""

    name: str
    version: int
    block: Block | None
    """Weights of the version, where they are not on disk."""


def check_placement(placement: str, num_workers: int) -> None:
    """Raise ConfigError if there is no such placement, or it cannot have so many workers."""
    check_choice("placement", placement, _PLACEMENTS)
    if isinstance(num_workers, bool) or not isinstance(num_workers, int) or num_workers < 1:
        raise ConfigError(f"num_workers: expected 1 or more, got {num_workers!r}")
    if placement == "caller" and num_workers != 1:
        raise ConfigError(
            f"num_workers={num_workers}: placement 'caller' has no workers: choose 'workers' or "
            "'proxy', or leave it out"
        )
