"""Versions of a model's weights on disk: `<n>.safetensors` each, and `index.json`.

Every file is written atomically and the index last, so that a crash at any point leaves the
versions that the index names whole.
"""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import safetensors
import safetensors.numpy

from bray_core.errors import CodecError, VersionNotFoundError
from bray_core.experiment import write_atomic
from bray_core.protocols import Weights

_FORMAT = 1
_FILE = re.compile(r"(\d+)\.safetensors")
_log = logging.getLogger(__name__)


class VersionStore:
    """The versions below one folder.

    Args:
        path: the folder; made on the first save.
        keep_last: how many versions a save leaves.
    """

    def __init__(self, path: Path, keep_last: int) -> None:
        self.path = path
        self._keep_last = keep_last

    def versions(self) -> list[int]:
        """Return the numbers of the versions on disk, ascending.

        Raises:
            CodecError: the index cannot be read.
        """
        index = self.path / "index.json"
        try:
            text = index.read_text()
        except FileNotFoundError:
            return self._rebuilt()
        try:
            content = json.loads(text)
            if content["format"] != _FORMAT:
                raise CodecError(
                    f"{index}: expected format {_FORMAT}, got {content['format']!r}: "
                    "it was written by another version of bray-model"
                )
            return sorted(int(number) for number in content["versions"])
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            if isinstance(error, CodecError):
                raise
            raise CodecError(
                f"{index}: not an index of versions ({error!r}): delete it to have it rebuilt"
            ) from error

    def save(self, version: int, weights: Weights) -> Path:
        """Write a version and drop the oldest beyond `keep_last`; return its file."""
        self.path.mkdir(parents=True, exist_ok=True)
        everything = sorted({*self.versions(), version})
        file = self._file(version)
        write_atomic(file, safetensors.numpy.save(dict(weights), {"version": str(version)}))
        # The one just written stays even where it is not among the newest numbers.
        kept = sorted({*everything[-self._keep_last :], version})
        index = json.dumps({"format": _FORMAT, "versions": kept})
        write_atomic(self.path / "index.json", index.encode())
        for old in set(everything) - set(kept):
            self._file(old).unlink(missing_ok=True)
        return file

    def load(self, version: int) -> Weights:
        """Read one version.

        Raises:
            VersionNotFoundError: it is not on disk; names those that are.
            CodecError: its file is broken.
        """
        known = self.versions()
        file = self._file(version)
        if version not in known or not file.is_file():
            raise VersionNotFoundError(
                f"version {version}: not in {self.path}; it has {known or 'none'}"
            )
        try:
            weights: Weights = safetensors.numpy.load(file.read_bytes())
        except safetensors.SafetensorError as error:
            raise CodecError(
                f"{file}: not a whole safetensors file ({error}): "
                f"delete it and load another version; known: {known}"
            ) from error
        return weights

    def _rebuilt(self) -> list[int]:
        """Without an index the file names tell: each file was written atomically."""
        matches = [_FILE.fullmatch(file.name) for file in self.path.glob("*.safetensors")]
        found = sorted(int(match[1]) for match in matches if match)
        if found:
            _log.warning("%s: no index.json; found the versions %s by file name", self.path, found)
        return found

    def _file(self, version: int) -> Path:
        return self.path / f"{version}.safetensors"
