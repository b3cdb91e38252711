"""Folders that bray saves: filled beside their place, so that a reader sees the old one or the new.

with saved_folder(Path("policy/7")) as new:
    (new / "graph.onnx").write_bytes(graph)
"""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bray_core.files.saved_file import is_abandoned

_TEMPORARY = re.compile(r"\.(.+)\.[a-z0-9_]{8}")
_NEW, _OLD = "new", "old"


@contextlib.contextmanager
def saved_folder(path: Path) -> Iterator[Path]:
    """Give an empty folder to fill, which takes the place of another unless an error is raised.

    Args:
        path: Folder to make or replace; of a link, the one that it leads to.
    """
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        dir=path.parent, prefix=f".{path.name}.", ignore_cleanup_errors=True
    ) as temporary:
        new, old = Path(temporary) / _NEW, Path(temporary) / _OLD
        new.mkdir()
        yield new
        try:
            if path.exists():
                path.rename(old)
            new.rename(path)
        finally:
            _put_back(old, path)


def _put_back(old: Path, path: Path) -> None:
    """Give what made way its place again, if nothing came."""
    if old.is_dir() and not path.exists():
        old.rename(path)


def remove_abandoned_folders(folder: Path) -> None:
    """Remove what processes left in a folder that were killed while they filled a folder there.

    What had to make way, and whose place is empty still, goes back.
    """
    for path in folder.glob(".*/"):
        named = _TEMPORARY.fullmatch(path.name)
        if named is None or not is_abandoned(path):
            continue
        if {one.name for one in path.iterdir()} <= {_NEW, _OLD}:
            _put_back(path / _OLD, folder / named[1])
            shutil.rmtree(path, ignore_errors=True)
