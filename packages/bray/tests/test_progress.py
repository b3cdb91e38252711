from __future__ import annotations

import io

from bray.progress import display
from bray.view import sparkline


def test_plain_lines_where_the_output_is_no_terminal() -> None:
    stream = io.StringIO()
    with display("a run", stream) as view:
        view.update({"return": 12.34, "frames": 2048, "other": 1.0})
        view.say("said")
    assert stream.getvalue().splitlines() == ["a run", "return 12.3  frames 2,048", "said"]


def test_a_sparkline_rises_with_its_values() -> None:
    assert sparkline([]) == ""
    assert sparkline([1.0]) == "▁"
    assert sparkline([0.0, 1.0, 2.0]) == "▁▅█"
    assert len(sparkline(list(range(1000)))) <= 60
