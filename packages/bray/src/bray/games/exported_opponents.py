"""Exported policies as opponents, each of which is loaded once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bray_actor.multi_agent.seat import Seat
from bray_actor.policy.policy_actor import PolicyConfig
from bray_core.config import from_mapping

if TYPE_CHECKING:
    from bray_model import Model


class ExportedOpponents:
    """Opponents by the folder of an export, or of a trial with one; kept until they are closed."""

    def __init__(self) -> None:
        self._models: dict[Path, Model] = {}
        self._seats: dict[Path, Seat] = {}

    def seat(self, path: Path) -> Seat:
        """Return the seat of an exported policy; it records nothing.

        Args:
            path: folder of the export or trial.

        Raises:
            NotFoundError: there is no export.
            ExportError: the export is broken.
        """
        if path not in self._seats:
            from bray_model import Model
            from bray_model.export.export_folder import find_export
            from bray_model.export_files.manifest import Manifest

            export = find_export(path)
            actor = Manifest.read(export).actor
            told = {} if actor is None else actor["config"]
            config = from_mapping(told, PolicyConfig, "manifest: actor")
            model = self._models[path] = Model(export, name=path.name)
            self._seats[path] = Seat(name=str(path), model=model, config=config)
        return self._seats[path]

    def close(self) -> None:
        """Close the models; nobody may play any more."""
        for model in self._models.values():
            model.close()
