from __future__ import annotations

from bray_core.files.printable import printable, printable_lines


def test_what_does_not_print_is_escaped() -> None:
    assert printable("säule 7/0") == "säule 7/0"
    assert printable("a\nERROR forged") == r"a\nERROR forged"
    assert printable("\x1b[2J\x9b\u202e\u2028\ud800") == r"\x1b[2J\x9b\u202e\u2028\ud800"
    assert printable("x" * 2000) == "x" * 1000 + "..."


def test_lines_stay_lines() -> None:
    assert printable_lines("a\n\tb \x1b[2J\rc") == "a\n\tb \\x1b[2J\\rc"
    assert printable_lines("x" * 2000) == "x" * 2000
