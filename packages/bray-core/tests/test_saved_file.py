"""The format number of a saved file: absent, known, too new, and none at all."""

from pathlib import Path
from typing import Any

import pytest

from bray_core.errors import CodecError, FormatError
from bray_core.files.saved_file import check_format

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
