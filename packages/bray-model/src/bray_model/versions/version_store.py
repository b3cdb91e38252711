"""Versions of a model's weights on disk: `<n>.safetensors` each, and `index.json`.

Every file is written atomically and the index last, so that a crash at any point leaves the
versions that the index names whole. Processes that change it take turns: a trainer that saves and
a league that pins lose nothing of each other's.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import safetensors
import safetensors.numpy

from bray_core.errors import BrayError, CodecError, VersionNotFoundError
from bray_core.files.saved_file import check_format, write_atomic
from bray_core.protocols import Weights
from bray_model.versions.retention import Retention

_FORMAT = 1
"""Format number of `index.json`."""
_FILE = re.compile(r"(\d+)\.safetensors")
_CURES = {
    errno.ENOSPC: "free space or keep fewer versions (retention)",
    errno.EDQUOT: "free space within the quota or keep fewer versions (retention)",
    errno.EROFS: "choose a directory that can be written",
    errno.EACCES: "choose a directory that this user can write",
}
_NO_LINKS = (errno.EPERM, errno.EXDEV, errno.ENOTSUP, errno.EMLINK)
"""What a file system says that has no hard links, or too many of one file."""
_ABANDONED_S = 3600.0
_log = logging.getLogger(__name__)


class CheckpointError(BrayError, OSError):
    """A version could not be written to disk; those that were there are as they were."""


class VersionStore:
    """The versions below one folder.

    Args:
        path: Folder of the versions; made on the first save.
        retention: Says which versions a save leaves.
    """

    def __init__(self, path: Path, retention: Retention) -> None:
        self.path = path
        self._retention = retention

    def versions(self) -> list[int]:
        """Return the numbers of the versions on disk, ascending.

        Raises:
            CodecError: the index cannot be read, or a newer version of bray wrote it.
        """
        return sorted(self._read().saved_s)

    def pinned(self) -> list[int]:
        """Return the versions that stay whatever the rules say, ascending."""
        return sorted(self._read().pinned)

    def pin(self, version: int, pinned: bool = True) -> None:
        """Let a version stay whatever the rules say, or no longer.

        Raises:
            VersionNotFoundError: The version is not on disk; names those that are.
        """
        with self._changing():
            index = self._read()
            if version not in index.saved_s:
                raise self._not_found(version, sorted(index.saved_s))
            change = index.pinned.add if pinned else index.pinned.discard
            change(version)
            self._write(index)

    def save(self, version: int, weights: Weights) -> Path:
        """Write a version and drop those that the rules do not keep; return its file.

        Raises:
            CheckpointError: The file cannot be written, such as on a full disk. The versions that
                were there are still there.
        """
        file = self._file(version)
        try:
            self._save(version, safetensors.numpy.save(dict(weights), {"version": str(version)}))
        except OSError as error:
            raise _cannot_write(file, version, error) from error
        return file

    def _save(self, version: int, data: bytes) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        with self._changing():
            self._save_alone(version, data)

    def _save_alone(self, version: int, data: bytes) -> None:
        index = self._read()
        write_atomic(self._file(version), data)
        is_new = version not in index.saved_s
        index.saved_s[version] = time.time()
        # The one just written stays even where it is not among the newest numbers.
        dropped = set(self._surplus(index)) - {version}
        for old in dropped:
            del index.saved_s[old]
        if is_new:
            self._write_or_remove(index, version)
        else:
            self._write(index)
        self._delete(dropped)
        self._sweep(index)

    def surplus(self) -> list[Path]:
        """Return the files of versions that the rules do not keep, the oldest first."""
        return [self._file(version) for version in self._surplus(self._read())]

    def prune(self) -> None:
        """Drop the versions that the rules do not keep, as a save does.

        Raises:
            CodecError: the index cannot be read.
            OSError: The index cannot be written; then all stays.
        """
        with self._changing():
            index = self._read()
            dropped = self._surplus(index)
            for old in dropped:
                del index.saved_s[old]
            if dropped:
                self._write(index)
                self._delete(dropped)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Keep other processes from changing the folder meanwhile, where its file system can."""
        if not self.path.is_dir():  # nothing to change
            yield
            return
        handle = os.open(self.path, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):  # a network's file system may have no locks
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _surplus(self, index: _Index) -> list[int]:
        kept = self._retention.kept(index.saved_s, index.pinned)
        return sorted(set(index.saved_s) - set(kept))

    def _delete(self, versions: Iterable[int]) -> None:
        for version in versions:
            self._file(version).unlink(missing_ok=True)

    def link(self, version: int, into: VersionStore) -> None:
        """Put a version into another store as well, without a copy of its file.

        There it stays when it is dropped here.

        Raises:
            VersionNotFoundError: The version is not on disk; names those that are.
            CheckpointError: the other store cannot be written.
        """
        index = self._read()
        if version not in index.saved_s:
            raise self._not_found(version, sorted(index.saved_s))
        file = into._file(version)
        try:
            into.path.mkdir(parents=True, exist_ok=True)
            self._link(version, file)
            into._write_or_remove(_Index({version: index.saved_s[version]}, set()), version)
        except OSError as error:
            raise _cannot_write(file, version, error) from error

    def _link(self, version: int, file: Path) -> None:
        try:
            os.link(self._file(version), file)
        except FileNotFoundError:  # dropped a moment ago
            raise self._not_found(version, self.versions()) from None
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            write_atomic(file, self._file(version).read_bytes())

    def load(self, version: int) -> Weights:
        """Read one version.

        Raises:
            VersionNotFoundError: The version is not on disk; names those that are.
            CodecError: The version's file is broken.
        """
        known = self.versions()
        file = self._file(version)
        if version not in known:
            raise self._not_found(version, known)
        try:
            weights: Weights = safetensors.numpy.load_file(file)
        except safetensors.SafetensorError as error:
            raise CodecError(
                f"{file}: not a whole safetensors file ({error}): "
                f"delete it and load another version; known: {known}"
            ) from error
        return weights

    def _not_found(self, version: int, known: list[int]) -> VersionNotFoundError:
        return VersionNotFoundError(
            f"version {version}: not in {self.path}; it has {known or 'none'}"
        )

    def _read(self) -> _Index:
        path = self.path / "index.json"
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            return self._rebuilt()
        except OSError as error:
            raise CodecError(f"{path}: cannot be read: {error.strerror}") from error
        try:
            content = json.loads(text)
            check_format(path, content, _FORMAT)
            named = {int(number): float(at) for number, at in content["versions"].items()}
            # A user may have deleted a file, as the message about a broken one says.
            saved_s = {number: at for number, at in named.items() if self._file(number).is_file()}
            return _Index(saved_s, {int(number) for number in content["pinned"]})
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            if isinstance(error, CodecError):
                raise
            raise CodecError(
                f"{path}: not an index of versions ({error!r}): delete it to have it rebuilt"
            ) from error

    def _write(self, index: _Index) -> None:
        content = {
            "format": _FORMAT,
            "versions": {str(number): index.saved_s[number] for number in sorted(index.saved_s)},
            "pinned": sorted(index.pinned & set(index.saved_s)),
        }
        write_atomic(self.path / "index.json", json.dumps(content).encode())

    def _write_or_remove(self, index: _Index, version: int) -> None:
        """Write the index; where that fails remove the new version, which none then names."""
        try:
            self._write(index)
        except OSError:
            self._file(version).unlink(missing_ok=True)
            raise

    def _sweep(self, index: _Index) -> None:
        """Remove what processes left that were killed while they wrote, not what one writes now."""
        for file in self.path.iterdir():
            match = _FILE.fullmatch(file.name)
            if file.name.startswith(".") or (match and int(match[1]) not in index.saved_s):
                with contextlib.suppress(FileNotFoundError):  # another process was quicker
                    if time.time() - file.stat().st_mtime > _ABANDONED_S:
                        file.unlink()

    def _rebuilt(self) -> _Index:
        """Without an index the files tell: each was written atomically."""
        found = {
            int(match[1]): file.stat().st_mtime
            for file in self.path.glob("*.safetensors")
            if (match := _FILE.fullmatch(file.name))
        }
        if found:
            _log.warning(
                "%s: no index.json; found the versions %s by file name; none is pinned",
                self.path,
                sorted(found),
            )
        return _Index(found, set())

    def _file(self, version: int) -> Path:
        return self.path / f"{version}.safetensors"


class _Index(NamedTuple):
    saved_s: dict[int, float]
    """Version → when it was saved, seconds since 1970."""
    pinned: set[int]


def _cannot_write(file: Path, version: int, error: OSError) -> CheckpointError:
    cure = _CURES.get(error.errno or 0, "look after the disk")
    return CheckpointError(
        f"{file}: version {version} cannot be written ({error.strerror or error}): {cure}, "
        "then try again; what was there is as it was"
    )
