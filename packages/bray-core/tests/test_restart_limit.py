from __future__ import annotations

from pathlib import Path

import pytest

from bray_core.errors import ConfigError
from bray_core.remote.restart_limit import RestartLimit, WorkerHistory


def die(times: int, every_s: float, limit: RestartLimit) -> int | None:
    """Return with which death a worker that dies regularly is given up; None: never."""
    history = WorkerHistory()
    for number in range(1, times + 1):
        now = 1e9 + number * every_s
        history = WorkerHistory.decode(history.died(limit, now).encode())
        if limit.is_exceeded(history.deaths, now):
            return number
    return None


@pytest.mark.parametrize(
    ("every_s", "given_up"),
    [(1.0, 11), (20.0, 11), (60.0, None), (3600.0, None)],  # a kill a minute is chaos, no fault
)
def test_deaths_close_together_are_a_crash_loop(every_s: float, given_up: int | None) -> None:
    assert die(1000, every_s, RestartLimit()) == given_up


def test_it_can_be_set() -> None:
    assert die(9, 1.0, RestartLimit(max_restarts=0)) == 1
    assert die(9, 1.0, RestartLimit(max_restarts=3, window_s=10)) == 4
    assert die(9, 4.0, RestartLimit(max_restarts=3, window_s=10)) is None
    with pytest.raises(ConfigError, match="max_restarts: expected 0 or more, got -1"):
        RestartLimit(max_restarts=-1)
    for window_s in (0.0, float("nan")):
        with pytest.raises(ConfigError, match="window_s: expected more than 0"):
            RestartLimit(window_s=window_s)


def test_a_clock_that_was_set_back_counts_nothing_twice() -> None:
    history = WorkerHistory(deaths=(2e9,) * 20).died(RestartLimit(), 1e9)
    assert history.deaths == (1e9,)


def test_last_words_are_one_line_of_what_can_be_shown(tmp_path: Path) -> None:
    said = tmp_path / "worker.err"
    said.write_bytes(
        b"x" * 10**6 + b"\n:job_id:1\n\x1b[31mout of memory\x1b[0m\n\n  at line 3\xff\n"
    )
    words = WorkerHistory(stderr=str(said)).last_words()
    assert words.endswith("?[31mout of memory?[0m | at line 3\ufffd")
    assert len(words) == 500
    said.write_text(":job_id:1\n")
    assert WorkerHistory(stderr=str(said)).last_words() == "it said nothing"
    assert "another machine, or gone" in WorkerHistory(stderr=str(tmp_path / "no")).last_words()
    assert WorkerHistory.decode(None) == WorkerHistory()
