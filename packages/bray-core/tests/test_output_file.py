"""Files that cannot be written are refused before what they are to hold is worked out."""

from __future__ import annotations

from pathlib import Path

import pytest

from bray_core.errors import ConfigError
from bray_core.files.output_file import check_output, check_output_folder


def test_the_folder_of_a_file_is_made(tmp_path: Path) -> None:
    check_output("--save", tmp_path / "a" / "b" / "costs.json")
    assert list((tmp_path / "a" / "b").iterdir()) == []
    (tmp_path / "costs.json").write_text("{}")
    check_output("--save", tmp_path / "costs.json")
    assert (tmp_path / "costs.json").read_text() == "{}"


def test_what_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"^--save: cannot write .*: Is a directory: name a file"):
        check_output("--save", tmp_path)
    with pytest.raises(ConfigError, match=r"^--save: cannot write into .*file: File exists: choos"):
        check_output("--save", tmp_path / "file" / "costs.json")
    with pytest.raises(ConfigError, match=r"^folder: cannot write into .*x: Not a directory"):
        check_output_folder("folder", tmp_path / "file" / "x")
