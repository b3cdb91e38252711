"""A trial as one file: its exports, the model card, and what environment it plays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bray.trained.agent import export_of, model_of, trained_environment
from bray.trained.model_card import model_card
from bray_core.errors import ConfigError
from bray_core.files.trial_folders import CONFIG
from bray_model.export.export_folder import find_exports
from bray_model.export_files.agent_file import CARD, SETTINGS, pack_agent


def pack_trial(path: Path, target: Path, policy: str | None = None) -> list[str]:
    """Write the exports of a trial into one file; return the names of its policies.

    Args:
        path: folder of a trial, or of an export.
        target: the file, such as `agent.bray`.
        policy: name of the only policy that is packed; None: all of them.

    Raises:
        NotFoundError: the folder has no export, or none of that policy.
        AlreadyExistsError: the file exists.
        ExportError: an export is broken.
    """
    found = find_exports(path) if policy is None else [export_of(path, policy)]
    exports = {model_of(path, export): export for export in found}
    texts = {CARD: model_card(path, exports)}
    settings = path / CONFIG
    if settings.is_file():
        texts[SETTINGS] = settings.read_text()
    pack_agent(target, exports, texts, _environment(path))
    return list(exports)


def _environment(path: Path) -> dict[str, Any] | None:
    """Return the environment as plain data; None where a simulator or a match is played."""
    try:
        described: dict[str, Any] = json.loads(trained_environment(path).to_json())
    except ConfigError:
        return None
    return described
