from __future__ import annotations

import io

from bray.training.progress import display


def test_plain_lines_where_the_output_is_no_terminal() -> None:
    stream = io.StringIO()
    with display("a run", stream) as view:
        view.update({"return": 12.34, "frames": 2048, "other": 1.0})
        view.update({"frames": 4096})  # too soon
        view.update({"frames": 8192}, now=True)
        view.say("said")
    lines = ["a run", "return 12.3  frames 2,048", "frames 8,192", "said"]
    assert stream.getvalue().splitlines() == lines
