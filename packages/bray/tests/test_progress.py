from __future__ import annotations

import io

from bray.goal import Goal
from bray.training.progress import DisplayRow, display, duration


def test_plain_lines_where_the_output_is_no_terminal() -> None:
    stream = io.StringIO()
    with display("a run", stream=stream) as view:
        view.update({"return": 12.34, "frames": 2048, "other": 1.0})
        view.update({"frames": 4096})  # too soon
        view.update({"frames": 8192}, now=True)
        view.say("said")
    lines = ["a run", "return 12.3  frames 2,048", "frames 8,192", "said"]
    assert stream.getvalue().splitlines() == lines


def test_a_goal_and_a_budget_stand_beside_what_is_to_reach_them() -> None:
    stream = io.StringIO()
    goal = Goal(episode_return=475.0, max_frames=1_000_000)
    with display("a run", goal, stream=stream) as view:
        view.update({"return": 33.2, "frames": 4096, "frames_per_s": 1631, "left_s": 610.6})
    assert stream.getvalue().splitlines()[1] == (
        "return 33.2 of 475.0  frames 4,096 of 1,000,000  frames_per_s 1,631  "
        "left 10 min 11 s at most"
    )


def test_a_terminal_gets_a_table_with_bars() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    goal = Goal(episode_return=-100.0, max_frames=1_000)
    stream = Terminal()
    with display("a run", goal, stream=stream) as view:
        view.update({"return": -200.0, "frames": 500, "left_s": 3.0})
        view.say("said")
    shown = stream.getvalue()
    for words in ("a run", "-200.0 of -100.0", "500 of 1,000", "3 s at most", "said"):
        assert words in shown
    assert "━" in shown, "a bar of the frames"


def test_a_share_is_told_where_there_is_one() -> None:
    assert DisplayRow("frames", "", target=200).share(50) == 0.25
    assert DisplayRow("frames", "", target=200).share(500) == 1.0
    assert DisplayRow("return", "", target=200).share(-5) == 0.0
    assert DisplayRow("return", "", target=-100).share(-200) is None
    assert DisplayRow("loss", "").share(1.0) is None


def test_durations_in_words() -> None:
    assert [duration(s) for s in (0.2, 59, 61, 3600, 7325)] == [
        "0 s", "59 s", "1 min 1 s", "1 h 0 min", "2 h 2 min",
    ]  # fmt: skip
