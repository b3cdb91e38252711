"""Folders of exports: written whole or not at all, found, copied. Needs no torch."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from bray_core.errors import AlreadyExistsError, ExportError, NotFoundError
from bray_core.files.output_file import check_output_folder
from bray_core.files.saved_folder import saved_folder
from bray_core.files.trial_folders import CONFIG, PROJECT
from bray_model.export.export_report import ExportReport
from bray_model.export_files.confined_file import inside
from bray_model.export_files.manifest import MANIFEST, REPORT, Manifest, check_files

_IN_A_TRIAL = f"models/*/onnx/*/{MANIFEST}"


def find_export(path: Path) -> Path:
    """Return `path` if it is an export, or the newest export of the trial in `path`.

    Raises:
        NotFoundError: The path is neither.
    """
    if path.is_file():
        raise NotFoundError(
            f"{path}: a file, where a folder is expected: give an export or a trial; what "
            "`bray pack` wrote is for `bray serve`, `bray watch` and `bray validate`"
        )
    if not path.is_dir():
        below = PROJECT / path
        near = f", did you mean {below}?" if (below / CONFIG).is_file() else ""
        raise NotFoundError(f"{path}: no such folder: give an export or a trial{near}")
    if (path / MANIFEST).is_file():
        return path
    manifests = list(path.glob(_IN_A_TRIAL))
    if not manifests:
        raise NotFoundError(
            f"{path}: neither an export ({MANIFEST}) nor a trial with one ({_IN_A_TRIAL}): "
            "a training run writes it when it ends"
        )
    return max(manifests, key=lambda file: (file.stat().st_mtime_ns, file)).parent


def find_exports(path: Path) -> list[Path]:
    """Return what is served from `path`: an export, the newest of each model of a trial, or a
    folder's.

    A folder of exports holds them as `EXPORT/` or `NAME/VERSION/`, whatever they are called.

    Raises:
        NotFoundError: there is none.
    """
    try:
        newest = find_export(path)
        models = {file.parents[2] for file in path.glob(_IN_A_TRIAL)}
        return sorted(map(_newest_of, models)) or [newest]
    except NotFoundError:
        found = [*path.glob(f"*/{MANIFEST}"), *path.glob(f"*/*/{MANIFEST}")]
        exports = sorted(file.parent for file in found if _is_visible(file.relative_to(path)))
        if not exports:
            raise
    return exports


def _newest_of(model: Path) -> Path:
    """Return the newest export of a trial's model."""
    manifests = model.glob(f"onnx/*/{MANIFEST}")
    return max(manifests, key=lambda file: (file.stat().st_mtime_ns, file)).parent


def _is_visible(path: Path) -> bool:
    """Whether no part of a path begins with a dot, as do folders that are being written."""
    return not any(part.startswith(".") for part in path.parts)


def copy_export(source: Path, target: Path) -> None:
    """Copy an export, its checksums compared on the way.

    Raises:
        ExportError: the export is broken.
        AlreadyExistsError: `target` holds something else than an export.
    """
    check_target(target)
    check_output_folder("output", target.parent)
    manifest = check_files(source)
    copies = {name: inside(source, name) for name in (*manifest.files, MANIFEST)}
    write_export(target, {}, copies=copies)


def read_report(export: Path) -> ExportReport:
    """Read the report of an export.

    Raises:
        ExportError: The export has no report, or a broken one.
    """
    return ExportReport.from_json(export, Manifest.read(export).read_file(export, REPORT))


def check_target(path: Path) -> None:
    """Refuse a folder that an export must not replace.

    Raises:
        AlreadyExistsError: `path` holds something else than an export.
    """
    empty = path.is_dir() and not any(path.iterdir())
    if path.exists() and not empty and not (path / MANIFEST).is_file():
        raise AlreadyExistsError(f"{path}: holds something else than an export: choose another")


def extend_export(path: Path, files: Mapping[str, bytes]) -> None:
    """Add or replace files of an export, all at once; whatever else it holds stays."""
    write_export(path, files, like=path)


def write_export(
    path: Path,
    files: Mapping[str, bytes],
    like: Path | None = None,
    copies: Mapping[str, Path] | None = None,
) -> None:
    """Write an export: a reader sees the old one or the new.

    Args:
        path: Folder to make or replace.
        files: file name → content.
        like: Folder that the new one is a copy of, before `files` are written; None: empty.
        copies: file name → file to copy, for what need not be in memory.

    Raises:
        ExportError: A file in `like` cannot be copied, such as a named pipe.
    """
    with saved_folder(path) as new:
        if like is not None:
            try:
                shutil.copytree(like, new, symlinks=True, dirs_exist_ok=True)
            except shutil.Error as error:
                raise ExportError(f"{like}: cannot be copied: {error}") from error
        for name, data in files.items():
            (new / name).write_bytes(data)
        for name, source in (copies or {}).items():
            shutil.copyfile(source, new / name)
        if copies:
            check_files(new)
