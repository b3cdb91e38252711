"""Refusing files that cannot be written, before what they are to hold is worked out."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from bray_core.errors import ConfigError


def check_output(name: str, path: Path) -> None:
    """Refuse a file that cannot be written; its folder is made.

    Args:
        name: setting that names it, such as `--save`.
        path: the file, which may be there already.

    Raises:
        ConfigError: says why.
    """
    check_output_folder(name, path.parent)
    if path.is_dir():
        raise ConfigError(f"{name}: cannot write {path}: Is a directory: name a file")
    if path.exists() and not os.access(path, os.W_OK):
        raise ConfigError(f"{name}: cannot write {path}: Permission denied: choose another file")


def check_output_folder(name: str, folder: Path) -> None:
    """Refuse a folder into which nothing can be written; it is made.

    Args:
        name: setting that names it or a file in it.
        folder: the folder.

    Raises:
        ConfigError: says why.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):  # only writing shows whether it can be written
            pass
    except OSError as error:
        raise ConfigError(
            f"{name}: cannot write into {folder}: {error.strerror or error}: choose another folder"
        ) from error
