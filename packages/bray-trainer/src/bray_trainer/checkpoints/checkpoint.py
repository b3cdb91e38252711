"""Checkpoint files: each is whole or absent, and the newest readable one is loaded."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import re
import shutil
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from bray_core.errors import CapacityError, CodecError, SpecError
from bray_core.files.saved_file import check_format

logger = logging.getLogger(__name__)

FORMAT = 1
"""Number of the format that `save` writes. Format 0 is the same content without a number."""

_NAME = re.compile(r"replay-(\d{9})\.pt")
_CONTENT = re.compile(r"(?P<stem>replay-(?P<replays>\d{9}))-[0-9a-f]+")
_PARTIAL = "partial.pt"
_PLAIN = (torch.Tensor, torch.Size, torch.dtype, torch.device, str, bool, int, float, type(None))
_UNREADABLE = (
    RuntimeError,
    OSError,
    EOFError,
    LookupError,
    ValueError,
    pickle.UnpicklingError,
    zipfile.BadZipFile,
)


def save(directory: Path, replays: int, state: Mapping[str, Any], keep: int) -> Path:
    """Write a checkpoint, then delete all but the newest `keep`.

    Args:
        directory: Folder of the checkpoints; made if it is absent.
        replays: Number of replays trained on so far; it orders the checkpoints.
        state: Tensors, numbers, strings, and dicts, lists and tuples of them.
        keep: Number of checkpoints that stay.

    Raises:
        SpecError: the state holds a value of another kind; the message names it.
        CapacityError: the disk is full, or cannot be written; the checkpoints before are as they
            were.
    """
    _check_plain(dict(state), "state")
    path = directory / f"replay-{replays:09d}.pt"
    partial = directory / _PARTIAL  # one name: what a crash leaves is overwritten
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            torch.save({"format": FORMAT, **state}, file)
            file.flush()
            os.fsync(file.fileno())
        # Renamed only when it is on disk: a checkpoint is whole or absent.
        partial.replace(path)
    except (OSError, RuntimeError) as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        if (cause := _disk_error(error)) is None:
            raise
        raise CapacityError(
            f"checkpoint: {path}: cannot be written: {cause.strerror}: free some space or choose "
            "another folder; the checkpoints before are as they were"
        ) from error
    for old in _newest_first(directory)[keep:]:
        old.unlink(missing_ok=True)
    _drop_content(directory, replays, state.get("content"))
    return path


def _disk_error(error: BaseException | None) -> OSError | None:
    """Return what the disk said; torch raises its own error on top of it."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error


def surplus(directory: Path, keep: int) -> list[Path]:
    """Return the checkpoints beyond the newest `keep`, and the folders beside them."""
    files = _newest_first(directory)[keep:]
    return [path for file in files for path in (file, *directory.glob(f"{file.stem}-*"))]


def content_folder(directory: Path, replays: int, token: str) -> Path:
    """Return the folder beside a checkpoint for what is too big to be in it.

    Args:
        directory: Folder of the checkpoints.
        replays: Number of replays trained on so far.
        token: Suffix of the name. An earlier checkpoint after as many replays has another one, so
            that its folder stays whole until the new folder is.
    """
    return directory / f"replay-{replays:09d}-{token}"


def _drop_content(directory: Path, replays: int, current: str | None) -> None:
    """Delete the folders whose checkpoints are gone; later ones are being written."""
    kept = {path.stem for path in _newest_first(directory)}
    for path in directory.iterdir():
        match = _CONTENT.fullmatch(path.name)
        if match is None or int(match["replays"]) > replays:
            continue
        is_replaced = int(match["replays"]) == replays and path.name != current
        if is_replaced or match["stem"] not in kept:
            shutil.rmtree(path, ignore_errors=True)


def _check_plain(value: Any, path: str) -> None:
    """Refuse what could be written but, for safety, not be read again."""
    if type(value) in (dict, OrderedDict):
        for key, child in value.items():
            _check_plain(child, f"{path}/{key}")
    elif type(value) in (list, tuple):
        for index, child in enumerate(value):
            _check_plain(child, f"{path}[{index}]")
    elif type(value) not in _PLAIN and not isinstance(value, torch.Tensor):
        raise SpecError(
            f"checkpoint: {path}: expected tensors, numbers, strings, or dicts, lists and tuples "
            f"of them, got {type(value).__module__}.{type(value).__qualname__}: convert it"
        )


def load_newest(directory: Path) -> dict[str, Any] | None:
    """Return the newest checkpoint that can be read, or None; broken ones are logged.

    Raises:
        FormatError: a newer version of bray wrote the newest one.
    """
    return next(readable(directory), None)


def readable(directory: Path) -> Iterator[dict[str, Any]]:
    """Yield the checkpoints that can be read, the newest first; broken ones are logged.

    Raises:
        FormatError: a newer version of bray wrote one. The one before is not tried: what was
            trained since would be lost without a word.
    """
    for path in _newest_first(directory):
        try:
            state = _load(path)
        except _UNREADABLE as error:
            logger.warning("checkpoint %s cannot be read, trying the one before: %s", path, error)
        else:
            check_format(path, state, FORMAT)
            yield state


def count(directory: Path) -> int:
    """Return how many checkpoints there are, readable or not."""
    return len(_newest_first(directory))


def _load(path: Path) -> dict[str, Any]:
    with zipfile.ZipFile(path) as archive:  # torch writes checksums, but does not look at them
        if broken := archive.testzip():
            raise ValueError(f"{broken}: its checksum is wrong")
    state: Any = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(state, dict):
        raise CodecError(f"expected a checkpoint's dict, got {type(state).__name__}")
    return state


def _newest_first(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return sorted((p for p in directory.iterdir() if _NAME.fullmatch(p.name)), reverse=True)
