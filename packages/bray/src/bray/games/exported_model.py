"""A policy that was exported, as a model that travels to the workers in which it plays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bray_core.nested import Nested
from bray_core.protocols import Answer, Weights


class ExportedModel:
    """A `ModelProtocol` of an export, which another process loads anew from its folder.

    Args:
        export: Folder of the export.
        name: Name in messages.

    Raises:
        ExportError: the export is broken.
    """

    def __init__(self, export: Path, name: str) -> None:
        from bray_model import Model  # torch's runtime: only who plays pays for it

        self.name = name
        self._export = export
        self._model = Model(export, name=name)
        self.signature = self._model.signature
        """What it takes and gives."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle where it lies: weights and threads stay in their process."""
        return ExportedModel, (self._export.resolve(), self.name)

    @property
    def version(self) -> int:
        """The version of the export."""
        return self._model.version

    async def infer(self, *inputs: Nested, batch: bool = False) -> Answer:
        """Answer one row, or with `batch` rows `[B, ...]`."""
        return await self._model.infer(*inputs, batch=batch)

    async def forward(self, *inputs: Nested, batch: bool = False) -> Nested:
        """`infer` without the version."""
        return (await self.infer(*inputs, batch=batch)).outputs

    def publish(self, weights: Weights) -> int:
        """Refuse weights, as an export does.

        Raises:
            BrayError: always.
        """
        return self._model.publish(weights)

    def checkpoint(self) -> Path | None:
        """Return None: it is on disk already."""
        return None

    async def wait_version(self, version: int, timeout_s: float | None = None) -> int:
        """Wait for a version, which an export never gets.

        Raises:
            DeadlineError: it is a later one.
        """
        return await self._model.wait_version(version, timeout_s)

    def close(self) -> None:
        """Free its runtime; it answers no more."""
        self._model.close()
