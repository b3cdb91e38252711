"""Folders that are filled beside their place."""

from __future__ import annotations

from pathlib import Path

import pytest

from bray_core.files.saved_folder import saved_folder


def contents(folder: Path) -> dict[str, str]:
    return {
        str(file.relative_to(folder)): file.read_text()
        for file in folder.rglob("*")
        if file.is_file()
    }


def save(path: Path, text: str) -> None:
    with saved_folder(path) as new:
        (new / "file").write_text(text)


def test_it_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    for text in ("one", "two"):
        save(tmp_path / "below" / "folder", text)
        assert contents(tmp_path) == {"below/folder/file": text}


def test_an_error_leaves_the_one_before(tmp_path: Path) -> None:
    save(tmp_path / "folder", "one")
    with pytest.raises(FileNotFoundError), saved_folder(tmp_path / "folder") as new:
        (new / "half").write_bytes((new / "absent").read_bytes())
    assert contents(tmp_path) == {"folder/file": "one"}
    assert [one.name for one in tmp_path.iterdir()] == ["folder"]


def test_a_place_that_cannot_be_taken_has_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "folder", "one")
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self.name == "new":
            raise PermissionError(target)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(PermissionError):
        save(tmp_path / "folder", "two")
    assert contents(tmp_path) == {"folder/file": "one"}


def test_of_a_link_the_folder_that_it_leads_to_is_replaced(tmp_path: Path) -> None:
    save(tmp_path / "disk" / "folder", "one")
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "folder")
    save(tmp_path / "link", "two")
    assert (tmp_path / "link").is_symlink()
    assert contents(tmp_path / "disk") == {"folder/file": "two"}


def test_others_may_read_it_as_any_new_folder(tmp_path: Path) -> None:
    save(tmp_path / "folder", "one")
    (tmp_path / "plain").mkdir()
    assert (tmp_path / "folder").stat().st_mode == (tmp_path / "plain").stat().st_mode
