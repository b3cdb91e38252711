"""Exported policies as opponents, each of which is loaded once."""

from __future__ import annotations

from pathlib import Path

from bray.games.exported_model import ExportedModel
from bray_actor.multi_agent.seat import Seat
from bray_actor.policy.policy_config import PolicyConfig
from bray_core.config import from_mapping


class ExportedOpponents:
    """Opponents by the folder of an export, or of a trial with one; kept until they are closed."""

    def __init__(self) -> None:
        self._models: dict[Path, ExportedModel] = {}
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
            from bray_model.export.export_folder import find_export

            export = find_export(path)
            config = exported_config(export)
            model = self._models[path] = ExportedModel(export, name=path.name)
            self._seats[path] = Seat(name=str(path), model=model, config=config)
        return self._seats[path]

    def close(self) -> None:
        """Close the models; nobody may play any more."""
        for model in self._models.values():
            model.close()


def exported_config(export: Path) -> PolicyConfig:
    """Return how an exported policy acts.

    Args:
        export: folder of the export itself.

    Raises:
        ExportError: it has no manifest, or a broken one.
        ConfigError: the manifest says something else of the actor.
    """
    from bray_model.export_files.manifest import Manifest

    actor = Manifest.read(export).actor
    return from_mapping({} if actor is None else actor["config"], PolicyConfig, "manifest: actor")
