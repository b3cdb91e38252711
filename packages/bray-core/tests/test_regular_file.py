"""Files are opened at once or refused: pipes, sockets, devices, folders, links that lead out."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from bray_core.errors import BrayError, RefusedFileError
from bray_core.files.regular_file import open_regular, read_regular, resolve_inside


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (os.mkfifo, "a named pipe"),
        (_socket, "a socket"),
        (Path.mkdir, "a folder"),
        (lambda path: path.symlink_to("/dev/zero"), "a device"),
    ],
)
def test_what_is_no_regular_file_is_refused_at_once(
    tmp_path: Path, make: Callable[[Path], None], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make(Path("file"))
    with pytest.raises(RefusedFileError, match=f"file: expected a regular file, got {kind}") as got:
        open_regular(Path("file"))
    assert got.value.strerror == f"expected a regular file, got {kind}"
    assert isinstance(got.value, BrayError | OSError)


def test_what_takes_a_files_place_meanwhile_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("text")
    was = os.stat(file)
    file.unlink()
    os.mkfifo(file)
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", lambda path: was)
        with pytest.raises(RefusedFileError, match="a named pipe"):
            open_regular(file)


def test_a_regular_file_is_read_up_to_a_bound(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 100)
    assert read_regular(file, 100) == b"x" * 100
    with pytest.raises(RefusedFileError, match="file: expected 99 bytes at most"):
        read_regular(file, 99)
    with open_regular(str(file), inside=[tmp_path]) as opened:
        assert opened.read(3) == b"xxx"
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "absent")


def test_links_lead_out_of_no_folder(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    inner, other = tmp_path / "inner", tmp_path / "other"
    (inner / "deep").mkdir(parents=True)
    (inner / "file").write_text("mine")
    (inner / "near").symlink_to("deep/../file")
    (inner / "far").symlink_to("../secret")
    (inner / "folder").symlink_to("..")
    (inner / "round").symlink_to("round")
    other.symlink_to(inner)
    assert read_regular(inner / "near", 9, inside=[inner]) == b"mine"
    assert read_regular(other / "near", 9, inside=[other]) == b"mine"
    assert resolve_inside(inner / "deep", [other]) == (inner / "deep").resolve()
    for name in ("far", "folder/secret", "../secret", "deep/../../secret"):
        with pytest.raises(RefusedFileError, match=r"a link leads out of .*inner"):
            read_regular(inner / name, 9, inside=[inner, inner / "deep"])
    assert read_regular(inner / "far", 9) == b"secret", "where no folder is asked for"
    for name in ("round", "absent"):
        with pytest.raises(OSError):
            read_regular(inner / name, 9, inside=[inner])
