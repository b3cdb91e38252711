"""The log of a trial: what it shows on standard error beside what it writes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bray_core.metrics.hub_wire import Line
from bray_core.trials.trial_log import TrialLog


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], TrialLog]]:
    made: list[TrialLog] = []

    def one() -> TrialLog:
        monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest sets up logging
        made.append(TrialLog(tmp_path / "bray.log"))
        return made[-1]

    yield one
    for log in made:
        log.close()


def test_the_first_warning_of_a_kind_is_shown(
    opened: Callable[[], TrialLog], capsys: pytest.CaptureFixture[str]
) -> None:
    log = opened()
    logger = logging.getLogger("game")
    for level in range(3):
        logger.warning("level %d is odd\nand long", level)
        logger.info("level %d begins", level)
        text = f"gamecore {level} ended"
        log.write_line(Line(0.0, logging.ERROR, "bray_actor", text), "worker", 1)
    assert capsys.readouterr().err == "warning: level 0 is odd\nerror: gamecore 0 ended\n"
    written = Path(log.baseFilename).read_text()
    assert written.count("is odd") == written.count(" ended") == 3


def test_kinds_that_are_shown_are_few(
    opened: Callable[[], TrialLog], capsys: pytest.CaptureFixture[str]
) -> None:
    opened()
    for number in range(200):
        logging.getLogger("game").warning("%s", chr(ord("a") + number % 26) * (number + 1))
    assert len(capsys.readouterr().err.splitlines()) == 50


def test_a_program_that_has_set_up_logging_shows_them_as_it_wants(
    opened: Callable[[], TrialLog], capsys: pytest.CaptureFixture[str]
) -> None:
    opened()
    logging.getLogger().addHandler(logging.NullHandler())
    logging.getLogger("game").warning("level 1 is odd")
    assert capsys.readouterr().err == ""


def test_an_error_stream_that_is_closed_ends_nothing(
    opened: Callable[[], TrialLog], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = opened()
    closed = (tmp_path / "err").open("w")
    closed.close()
    monkeypatch.setattr("sys.stderr", closed)
    logging.getLogger("game").warning("level 1 is odd")
    assert "is odd" in Path(log.baseFilename).read_text()
