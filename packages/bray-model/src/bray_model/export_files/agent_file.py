"""A trained agent as one file: a zip of its exports, a model card, and the checksum of each.

The file holds, in this order:

    agent.json             what `AgentIndex` says: the environment, sizes and checksums
    card.md                the model card, for people
    settings.yaml          what it was trained with, for people
    exports/NAME/…         the export of each policy, see `manifest`

Who opens one trusts it with nothing: its members are stored without compression, so that a file
takes no more room unpacked than packed; their names, number and sizes are checked before anything
is written; and none of it is imported, evaluated or unpickled.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import struct
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from bray_core.errors import AlreadyExistsError, CodecError, ExportError, RefusedFileError
from bray_core.files.json_file import read_object
from bray_core.files.output_file import check_output_folder
from bray_core.files.regular_file import open_regular
from bray_model.export_files.confined_file import inside
from bray_model.export_files.manifest import MANIFEST, check_files, file_sha256, sha256

INDEX = "agent.json"
CARD = "card.md"
SETTINGS = "settings.yaml"
EXPORTS = "exports"
FORMAT = 1

_MAX_BYTES = 2**32 - 2**20
"""Size from which zip needs its second format of offsets, which this reader refuses."""
_MAX_FILES = 1000
_MAX_DIRECTORY_BYTES = 1024 * 1024
_PART = "[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
_NAME = re.compile(f"{re.escape(CARD)}|{re.escape(SETTINGS)}|{EXPORTS}/{_PART}/{_PART}")
_SHA256 = re.compile("[0-9a-f]{64}")
_END = struct.Struct("<4s4H2LH")
_END_MARK, _ZIP64_MARK, _ZIP64_BYTES = b"PK\5\6", b"PK\6\7", 20
_DATE = (1980, 1, 1, 0, 0, 0)
"""Date of every member: the same agent becomes the same bytes."""
_COPIED_BYTES = 1024 * 1024
_IS_ENCRYPTED = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedFile:
    """One file of an agent."""

    sha256: str
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentIndex:
    """What an agent file says of itself."""

    files: dict[str, PackedFile]
    """Name of each member → its size and checksum."""
    environment: dict[str, Any] | None = None
    """How the environment is made that it was trained in, as plain data; None where there is none
    that can be named."""

    def to_json(self) -> bytes:
        """Return the content of `agent.json`."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1).encode() + b"\n"


def pack_agent(
    target: Path,
    exports: Mapping[str, Path],
    texts: Mapping[str, str],
    environment: Mapping[str, Any] | None = None,
) -> None:
    """Write exports into one file, which is there whole or not at all.

    Args:
        target: file to write, such as `agent.bray`.
        exports: name of each policy → folder of its export.
        texts: contents of `card.md` and `settings.yaml`.
        environment: see `AgentIndex`.

    Raises:
        AlreadyExistsError: the file exists.
        ExportError: an export is broken, has a name that is no file name, or they are too large.
    """
    if target.exists():
        raise AlreadyExistsError(f"{target}: exists already: name another file, or delete it")
    sources = {
        f"{EXPORTS}/{name}/{file}": inside(export, file)
        for name, export in exports.items()
        for file in (MANIFEST, *check_files(export).files)
    }
    encoded = {name: text.encode() for name, text in texts.items()}
    files = {n: PackedFile(sha256=sha256(data), bytes=len(data)) for n, data in encoded.items()}
    for name, path in sources.items():
        files[name] = PackedFile(sha256=file_sha256(path), bytes=path.stat().st_size)
    _check_index(target, AgentIndex(files=files))
    index = AgentIndex(files=files, environment=None if environment is None else dict(environment))
    check_output_folder("file", target.parent)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder:
        new = Path(folder) / "new"
        with zipfile.ZipFile(new, "w", zipfile.ZIP_STORED, allowZip64=False) as archive:
            for name, data in {INDEX: index.to_json(), **encoded}.items():
                archive.writestr(zipfile.ZipInfo(name, _DATE), data)
            for name, path in sources.items():
                with path.open("rb") as source, archive.open(_info(name, path), "w") as member:
                    while data := source.read(_COPIED_BYTES):
                        member.write(data)
        new.rename(target)


def _info(name: str, path: Path) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, _DATE)
    info.file_size = path.stat().st_size
    return info


def read_index(path: Path) -> AgentIndex:
    """Return what an agent file says of itself.

    Raises:
        NotFoundError, ExportError: see `unpack_agent`.
    """
    with _opened(path) as (_, index):
        return index


@contextlib.contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """Give the folder of exports of an agent file for as long as it is used; a folder as it is.

    Args:
        path: an agent file, or whatever else `find_exports` takes.

    Raises:
        ExportError: see `unpack_agent`.
    """
    if not path.is_file():
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="bray-agent-") as folder:
        unpack_agent(path, Path(folder))
        yield Path(folder)


def unpack_agent(path: Path, folder: Path) -> AgentIndex:
    """Write the files of an agent into a folder, their checksums compared; return the index.

    Args:
        path: the agent file.
        folder: an empty folder.

    Raises:
        ExportError: it is no agent file, was changed, or breaks a bound: nothing of it that was
            not checked has been written, and never anything outside the folder.
    """
    with _opened(path) as (archive, index):
        for name, packed in index.files.items():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(name) as member, target.open("xb") as file:
                _copy(path, name, cast(BinaryIO, member), file, packed)
    return index


def _copy(path: Path, name: str, member: BinaryIO, file: BinaryIO, packed: PackedFile) -> None:
    """Copy a member, whose size has been checked, and compare its checksum."""
    digest = hashlib.sha256()
    while data := member.read(_COPIED_BYTES):
        digest.update(data)
        file.write(data)
    if digest.hexdigest() != packed.sha256:
        raise ExportError(
            f"{path}: {name} does not have the checksum of {INDEX}: the file is truncated or was "
            "changed: copy it again"
        )


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[zipfile.ZipFile, AgentIndex]]:
    """Open an agent file with all but the contents of its members checked."""
    try:
        with open_regular(path) as file:
            _check_end(path, file)
            with zipfile.ZipFile(file) as archive:
                yield archive, _checked_members(path, archive)
    except (OSError, RefusedFileError) as error:
        raise ExportError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError, RuntimeError) as error:
        raise _broken(path, str(error)) from error  # what zipfile says of bytes that lie


def _broken(path: Path, reason: str) -> ExportError:
    return ExportError(f"{path}: expected an agent file that `bray pack` wrote, got {reason}")


def _check_end(path: Path, file: BinaryIO) -> None:
    """Refuse a file by its last bytes, before its directory is read into memory."""
    size = os.fstat(file.fileno()).st_size
    if size > _MAX_BYTES:
        raise _broken(path, f"{size:,} bytes, where {_MAX_BYTES:,} are allowed")
    if size < _END.size:
        raise _broken(path, f"{size} bytes")
    file.seek(size - _END.size)
    mark, _, _, _, count, directory, _, comment = _END.unpack(file.read(_END.size))
    if mark != _END_MARK or comment:
        raise _broken(path, "something that does not end as a zip does")
    if count > _MAX_FILES or directory > _MAX_DIRECTORY_BYTES:
        raise _broken(path, f"{count} files, where {_MAX_FILES} are allowed")
    file.seek(max(0, size - _END.size - _ZIP64_BYTES))
    if file.read(4) == _ZIP64_MARK:
        raise _broken(path, "a zip of the kind that is larger than 4 GB")


def _checked_members(path: Path, archive: zipfile.ZipFile) -> AgentIndex:
    """Return the index, once the members are those that it lists, and stored as they are."""
    members = {info.filename: info for info in archive.infolist()}
    if len(members) != len(archive.infolist()):
        raise _broken(path, "two files of one name")
    for info in members.values():
        if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
            raise _broken(path, f"{info.filename[:200]!r} compressed: it may unpack to any size")
        if info.flag_bits & _IS_ENCRYPTED:
            raise _broken(path, f"{info.filename[:200]!r} encrypted")
    assert archive.fp is not None
    size = os.fstat(archive.fp.fileno()).st_size
    if sum(info.file_size for info in members.values()) > size:
        raise _broken(path, "files that share their bytes: they would unpack to more than it holds")
    if INDEX not in members:
        raise _broken(path, f"no {INDEX}")
    index = _read_index(path, archive)
    told = {INDEX, *index.files}
    if told != members.keys():
        odd = min(told ^ members.keys())
        raise _broken(path, f"{odd[:200]!r}, which {INDEX} and the zip do not both hold")
    for name, packed in index.files.items():
        if packed.bytes != members[name].file_size:
            raise _broken(path, f"{name} of another size than {INDEX} says")
    return index


def _read_index(path: Path, archive: zipfile.ZipFile) -> AgentIndex:
    def opener(name: Path) -> BinaryIO:
        return cast(BinaryIO, archive.open(str(name)))

    try:
        content = read_object(Path(INDEX), opener) or {}
        if content.get("format") != FORMAT:
            raise CodecError(
                f"{INDEX}: expected format {FORMAT}, got {str(content.get('format'))[:100]}: "
                "a newer version of bray wrote it: open it with that one"
            )
        content.pop("format")
        index = msgspec.convert(content, AgentIndex)
    except CodecError as error:
        raise ExportError(f"{path}: {error}") from error
    except msgspec.ValidationError as error:
        raise ExportError(f"{path}: {INDEX}: {error}") from error
    _check_index(path, index)
    return index


def _check_index(path: Path, index: AgentIndex) -> None:
    if len(index.files) >= _MAX_FILES or sum(f.bytes for f in index.files.values()) > _MAX_BYTES:
        raise ExportError(
            f"{path}: expected at most {_MAX_FILES} files of {_MAX_BYTES:,} bytes together"
        )
    for name, packed in index.files.items():
        if not _NAME.fullmatch(name):
            raise ExportError(
                f"{path}: {INDEX}: files: expected {CARD}, {SETTINGS} or {EXPORTS}/NAME/FILE, got "
                f"{name[:200]!r}"
            )
        if packed.bytes < 0 or not _SHA256.fullmatch(packed.sha256):
            raise ExportError(f"{path}: {INDEX}: files: {name}: expected a size and a sha256")
