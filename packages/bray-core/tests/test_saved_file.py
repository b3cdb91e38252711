"""Saved files: who may read them, and their format number."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bray_core.errors import CodecError, FormatError
from bray_core.files.saved_file import check_format, write_atomic

PATH = Path("trial/best.json")


@pytest.mark.parametrize(("content", "found"), [({}, 0), ({"format": 0}, 0), ({"format": 3}, 3)])
def test_a_known_format_is_returned_and_none_is_0(content: Any, found: int) -> None:
    assert check_format(PATH, content, 3) == found


def test_a_newer_format_is_refused_in_words() -> None:
    words = (
        r"best\.json: has format 4, this version reads up to 3: a newer version of bray wrote it"
    )
    with pytest.raises(FormatError, match=words):
        check_format(PATH, {"format": 4}, 3)


@pytest.mark.parametrize("wrong", [-1, True, 1.0, "2", None, [1]])
def test_what_is_no_number_is_refused(wrong: Any) -> None:
    with pytest.raises(CodecError, match="format: expected a number from 0") as caught:
        check_format(PATH, {"format": wrong}, 3)
    assert not isinstance(caught.value, FormatError)


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_who_may_read_a_file_is_what_the_process_or_its_owner_said(tmp_path: Path) -> None:
    path = tmp_path / "best.json"
    write_atomic(path, b"1")
    assert path.stat().st_mode & 0o777 == 0o640
    path.chmod(0o600)
    write_atomic(path, b"2")
    assert path.stat().st_mode & 0o777 == 0o600
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (b"2", [path])
