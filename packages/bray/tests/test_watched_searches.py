"""`bray watch` of AlphaZero's trials: the search of the network plays."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from bray.cli.closing_message import closing_message
from bray.games.open_spiel_board import OpenSpielBoard
from bray.goal import Outcome
from bray.templates.loading import compose
from bray.trained.watched_searches import _Position
from bray_actor.recording import read_episode
from bray_core.cli import main
from bray_core.codec import decode

TINY = ["num_games=8", "hidden=[8]", "num_simulations=4", "play_simulations=8", "minibatches=1"]


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alphazero")
    words = ["train", "alphazero", "tic-tac-toe", *TINY, "--frames", "64", "--episodes", "2"]
    assert main([*words, "minibatch_size=32", "--project", str(folder)]) == 0
    return folder / "alphazero-tic-tac-toe-1"


def test_its_search_plays_itself(trial: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(trial)]) == 0
    said = capsys.readouterr().out
    boards = said.split("\n\n")
    assert boards[0] == ". . .\n. . .\n. . ."
    assert (boards[1].count("X"), boards[2].count("O")) == (1, 1)
    assert "player_0 (policy)" in said
    assert "player_1 (policy)" in said
    newest = max((trial / "episodes").iterdir(), key=lambda file: file.stat().st_mtime_ns)
    first = decode(read_episode(newest).requests[1].reply or b"")
    assert first["agents"]["player_0"]["probabilities"].shape == (9,)


@pytest.mark.parametrize("against", ["random", "search"])
def test_it_meets_others(trial: Path, against: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(trial), "--against", against, "--episodes", "2", "--sample"]) == 0
    said = capsys.readouterr().out
    assert f"player_1 ({against})" in said
    assert "over 2 games" in said


def test_it_becomes_a_video(trial: Path, tmp_path: Path) -> None:
    assert main(["watch", str(trial), "--save", str(tmp_path / "game.gif")]) == 0
    with Image.open(tmp_path / "game.gif") as image:
        assert image.n_frames >= 6


def test_an_unknown_opponent_is_refused(trial: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(trial), "--against", "serach"]) == 2
    assert "expected one of random, search, got 'serach'" in capsys.readouterr().err


def test_a_position_of_open_spiel_is_its_text() -> None:
    pytest.importorskip("pyspiel")
    game = OpenSpielBoard("tic_tac_toe")
    assert _Position(game, game.initial(1)[0], 0).render() == "...\n...\n..."


@pytest.mark.parametrize(
    ("algorithm", "task", "is_watched"),
    [
        ("alphazero", "tic-tac-toe", True),
        ("ppo", "bray:tic-tac-toe", True),
        ("ppo", "CartPole-v1", True),
        ("qmix", "two-step", False),
    ],
)
def test_the_closing_lines_name_it(algorithm: str, task: str, is_watched: bool) -> None:
    outcome = Outcome(reached=True, evaluation_return=1.0, frames=1, seconds=1.0, version=1)
    said = closing_message(compose(algorithm, task), Path("x"), outcome, is_exported=True)
    assert ("bray watch x" in said) == is_watched
    assert "run the same command with more --frames to go on" in said
