"""Errors of other people's code, in one line that says where."""

from __future__ import annotations

from pathlib import Path

import pytest

from bray_core.errors import SpecError
from bray_core.process.raised_words import raised_words
from bray_core.process.user_modules import import_user_code, import_user_file

CODE = """
import json

def parse():
    return json.loads("{")

def boom():
    raise KeyError("boss\\nlevel")
"""


@pytest.fixture
def code(tmp_path: Path):
    path = tmp_path / f"bray_{tmp_path.name}.py"  # a user's, whatever its name
    path.write_text(CODE)
    return import_user_file(path)


@pytest.mark.parametrize(
    ("called", "words"),
    [
        ("boom", r"KeyError: 'boss\nlevel' ({file}, line 8, in boom)"),
        (
            "parse",
            "JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 "
            "(char 1) ({file}, line 5, in parse)",
        ),
    ],
)
def test_the_line_is_that_of_the_code_that_called_a_library(code, called: str, words: str) -> None:
    with pytest.raises(LookupError if called == "boom" else ValueError) as raised:
        getattr(code, called)()
    assert raised_words(raised.value) == words.replace("{file}", Path(code.__file__).name)


def test_what_was_not_raised_or_is_brays_own_has_no_line() -> None:
    assert raised_words(ValueError("far\naway")) == "ValueError: far"
    with pytest.raises(SpecError) as raised:
        raise SpecError("reward: expected a number")
    assert raised_words(raised.value) == "SpecError: reward: expected a number"


@pytest.mark.parametrize("raised", ["RuntimeError('licence expired')", "SystemExit(2)"])
def test_code_that_raises_where_it_is_imported_is_told(tmp_path: Path, raised: str) -> None:
    path = tmp_path / "licensed.py"
    path.write_text(f"raise {raised}")
    words = raised.replace("('", ": ").replace("')", "").replace("(2)", ": 2")
    with pytest.raises(ImportError, match=rf"it raised {words} \(licensed.py, line 1, in <module>"):
        import_user_code(str(path))
