"""The template files of one folder: listed, opened and saved. No other file is ever touched."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from pathlib import Path
from typing import TypedDict

from bray.templates import loading
from bray_core.errors import AlreadyExistsError, ConfigError, NotFoundError
from bray_core.files.regular_file import open_regular, refused
from bray_core.files.saved_file import write_atomic

MAX_BYTES = 32 * 1024
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,94}\.yaml")
_MAX_LISTED = 500


class TemplateText(TypedDict):
    """The content of a template file."""

    name: str
    text: str
    stamp: str | None
    """Changes with the content, for `TemplateFiles.save`; None: not saved yet."""


class TemplateFiles:
    """The YAML files of a folder. Thread-safe.

    Args:
        folder: folder of the files; folders below it are not looked at.

    Raises:
        NotFoundError: there is no such folder.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise NotFoundError(f"--builder: no folder {folder}")
        self.folder = folder.resolve()
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """Return the names of the files, sorted."""
        with os.scandir(self.folder) as entries:
            found = [e.name for e in entries if _NAME.fullmatch(e.name) and _is_plain(e)]
        return sorted(found)[:_MAX_LISTED]

    def open(self, name: str) -> TemplateText:
        """Return the content of a file.

        Raises:
            ConfigError: the name is none of a YAML file, or the file is no text, or too long.
            NotFoundError: there is no file of that name.
        """
        path = self.path(name)
        try:
            data = self._read(path)
        except OSError as error:
            raise NotFoundError(f"file: no {name} in {self.folder}") from error
        if len(data) > MAX_BYTES:
            raise ConfigError(f"file: {name} is longer than {MAX_BYTES} bytes: no template")
        try:
            return {"name": name, "text": data.decode(), "stamp": _stamp(data)}
        except UnicodeDecodeError as error:
            raise ConfigError(f"file: {name} is not text in UTF-8: {error.reason}") from error

    def save(self, name: str, text: str, stamp: str | None) -> TemplateText:
        """Write a valid template, whole or not at all; return it as `open` does.

        Args:
            name: name of the file.
            text: content of the file.
            stamp: stamp of the file as it was opened; None for a new file.

        Raises:
            ConfigError: the name is none of a YAML file, or the text is too long.
            SettingsError: the text is no valid template; names every problem.
            AlreadyExistsError: the file was changed or made since it was opened.
        """
        path, data = self.path(name), text.encode()
        if len(data) > MAX_BYTES:
            raise ConfigError(f"text: expected {MAX_BYTES} bytes at most, got {len(data)}")
        loading.parse(text, name)
        with self._lock:  # two pages that save at once: the second sees the first one's stamp
            self._refuse_changed(path, stamp)
            try:
                write_atomic(path, data)
            except OSError as error:
                raise ConfigError(f"file: cannot write {path}: {error.strerror}") from error
        return self.open(name)

    def path(self, name: str) -> Path:
        """Return a file's path.

        Raises:
            ConfigError: the name is none of a YAML file.
        """
        if not _NAME.fullmatch(name):
            raise ConfigError(
                "file: expected a name of letters, digits, '.', '_' or '-' that ends with .yaml, "
                f"got {name[:100]!r}"
            )
        return self.folder / name

    def _refuse_changed(self, path: Path, stamp: str | None) -> None:
        if path.is_symlink():
            raise ConfigError(f"file: {path.name} is a link: choose another name")
        try:
            now = _stamp(self._read(path))
        except FileNotFoundError:
            now = None
        except OSError as error:
            raise ConfigError(f"file: cannot read {path}: {error.strerror}") from error
        if now == stamp:
            return
        if stamp is None:
            raise AlreadyExistsError(
                f"file: {path.name} exists already: open it, or choose another name"
            )
        was = "deleted" if now is None else "changed on disk"
        raise AlreadyExistsError(
            f"file: {path.name} was {was} since it was opened: open it again, or choose another "
            "name"
        )

    def _read(self, path: Path) -> bytes:
        if path.is_symlink():
            raise refused(path, "expected a file, got a link")
        with open_regular(path, inside=[self.folder]) as file:
            return file.read(MAX_BYTES + 1)  # one byte more tells a file that is too long


def _is_plain(entry: os.DirEntry[str]) -> bool:
    return entry.is_file(follow_symlinks=False)


def _stamp(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
