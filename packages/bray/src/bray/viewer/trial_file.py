"""Opens every file of a trial that the viewer reads, and refuses links that lead elsewhere.

A trial's folder may itself be a link, such as to a larger disk: the owner of the project made it.
Links inside a trial may not lead out of the trial's and the project's folder: a trial that came
from somebody else could name any file of the one who looks at it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from bray_core.errors import CodecError
from bray_core.files import trial_folders
from bray_core.files.json_file import read_object
from bray_core.files.regular_file import Opener, open_regular, resolve_inside

MAX_TEXT_BYTES = 256 * 1024


def opener_of(trial: Path) -> Opener:
    """Return a function that opens files of a trial.

    It raises RefusedFileError for a path that is no regular file or lies elsewhere, else OSError.
    """
    inside = _folders_of(trial)
    return lambda path: open_regular(path, inside=inside)


def open_file(trial: Path, path: Path) -> BinaryIO:
    """Open a file of a trial; raises the errors that `opener_of` names."""
    return opener_of(trial)(path)


def text(trial: Path, path: Path) -> str | None:
    """Return the first `MAX_TEXT_BYTES` of a file as text; None where it cannot be read."""
    try:
        with open_file(trial, path) as file:
            return file.read(MAX_TEXT_BYTES).decode(errors="replace")
    except OSError:
        return None


def json_object(trial: Path, path: Path, max_bytes: int = MAX_TEXT_BYTES) -> dict[str, object]:
    """Return the JSON object in a file, empty where it cannot be read."""
    try:
        return read_object(path, opener_of(trial), max_bytes) or {}
    except CodecError:
        return {}


def entries(trial: Path, folder: Path) -> Sequence[os.DirEntry[str]]:
    """Return the entries of a trial's folder that can be shown; none where it lies elsewhere."""
    try:
        with os.scandir(resolve_inside(folder, _folders_of(trial))) as found:
            return [entry for entry in found if entry.name[0] != "." and is_text(entry.name)]
    except OSError:
        return []


def launches(trial: Path) -> list[Path]:
    """Return the folders of a trial's launches, the oldest first."""
    try:
        resolve_inside(trial / "launches", _folders_of(trial))
    except OSError:
        return []
    return [launch for launch in trial_folders.launches(trial) if is_text(launch.name)]


def is_text(name: str) -> bool:
    """Return whether a file's name is UTF-8; an address or a page cannot hold any other."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _folders_of(trial: Path) -> tuple[Path, Path]:
    return trial, trial.parent
