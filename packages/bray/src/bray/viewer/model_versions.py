"""The versions of a trial's models, with their clones and exports, as the viewer shows them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from bray.viewer.trial_file import entries, open_file
from bray_core.errors import CodecError
from bray_core.files.regular_file import refused
from bray_model.versions.retention import Retention
from bray_model.versions.version_store import VersionStore

_MAX_MESSAGE = 1000
_MAX_VERSIONS = 2000
_MAX_MODELS = 100
_MAX_INDEX_BYTES = 4 * 1024 * 1024


def versions(trial: Path) -> list[dict[str, object]]:
    """Return a trial's models: each one's versions, newest first, its clones and its exports."""
    return [
        _model(trial, trial / "models" / name)
        for name in _folders(trial, trial / "models")[:_MAX_MODELS]
    ]


def _model(trial: Path, path: Path) -> dict[str, object]:
    numbers: list[int] = []
    pinned: set[int] = set()
    problem = None
    try:
        if entries(trial, path / "versions"):
            _refuse_index(trial, path / "versions" / "index.json")
            store = VersionStore(path / "versions", Retention())
            numbers, pinned = store.versions(), set(store.pinned())
    except (CodecError, OSError, OverflowError) as error:
        problem = str(error)[:_MAX_MESSAGE]
    shown = numbers[-_MAX_VERSIONS:]
    found = [_version(path / "versions", number, number in pinned) for number in reversed(shown)]
    return {
        "name": path.name,
        "versions": [one for one in found if one is not None],
        "num_versions": len(numbers),
        "clones": _folders(trial, path / "clones")[:_MAX_VERSIONS],
        "exports": _folders(trial, path / "onnx")[:_MAX_VERSIONS],
        "problem": problem,
    }


def _refuse_index(trial: Path, index: Path) -> None:
    """Refuse an index of versions that lies outside the trial, is no file, or is too long."""
    with suppress(FileNotFoundError), open_file(trial, index) as file:
        if file.seek(0, os.SEEK_END) > _MAX_INDEX_BYTES:
            raise refused(index, f"expected {_MAX_INDEX_BYTES} bytes at most")


def _version(folder: Path, number: int, is_pinned: bool) -> dict[str, object] | None:
    try:
        found = (folder / f"{number}.safetensors").lstat()  # a link is not followed
    except OSError:  # deleted meanwhile
        return None
    return {
        "version": number,
        "pinned": is_pinned,
        "saved_s": found.st_mtime,
        "bytes": found.st_size,
    }


def _folders(trial: Path, path: Path) -> list[str]:
    return sorted(entry.name for entry in entries(trial, path) if entry.is_dir())
