from __future__ import annotations

from bray_core.files.escaping import escape_unprintable, escape_unprintable_lines


def test_what_does_not_print_is_escaped() -> None:
    assert escape_unprintable("säule 7/0") == "säule 7/0"
    assert escape_unprintable("a\nERROR forged") == r"a\nERROR forged"
    assert escape_unprintable("\x1b[2J\x9b\u202e\u2028\ud800") == r"\x1b[2J\x9b\u202e\u2028\ud800"
    assert escape_unprintable("x" * 2000) == "x" * 1000 + "..."


def test_lines_stay_lines() -> None:
    assert escape_unprintable_lines("a\n\tb \x1b[2J\rc") == "a\n\tb \\x1b[2J\\rc"
    assert escape_unprintable_lines("x" * 2000) == "x" * 2000
