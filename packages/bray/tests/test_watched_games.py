"""`bray watch` of trials of games, of matches and of several policies."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image
from test_composition_runs import RACE, run_of

from bray_core.cli import main

pytestmark = pytest.mark.usefixtures("evaluated_here")

DRAWN = f"{Path(__file__).with_name('hooked_match.py')}:DrawnRace"
LEARN = "algorithm: ppo, steps_per_replay: 64, epochs: 1, minibatch_size: 64"
MATCHES = f"""
algorithm: ppo
model: {{hidden: [4]}}
source: {{kind: matches, environment: "bray:tic-tac-toe", num_envs: 2}}
trainer: {{{LEARN.removeprefix("algorithm: ppo, ")}}}
goal: {{max_frames: 64, evaluation_episodes: 2}}
"""
SEVERAL = f"""
models: {{red: {{hidden: [4]}}, pole: {{hidden: [4]}}}}
trainers: {{red: {{{LEARN}}}, pole: {{{LEARN}}}}}
agents: {{red: {{}}, pole: {{}}, other: {{play: random}}}}
sources:
  race: {{kind: agents, environment: "{DRAWN}", num_envs: 2, agents: {{red: red, blue: other}}}}
  cart: {{environment: CartPole-v1, num_envs: 2, agents: {{"*": pole}}}}
goal: {{agent: red, max_frames: 64, evaluation_episodes: 2}}
"""


@pytest.fixture(scope="module")
def matches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = run_of(tmp_path_factory.mktemp("matches"), MATCHES)["path"]
    return path


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = run_of(tmp_path_factory.mktemp("several"), SEVERAL)["path"]
    return path


def test_a_board_game_is_told_as_text(matches: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(matches), "--against", "random", "--episodes", "2"]) == 0
    said = capsys.readouterr().out
    boards = said.split("\n\n")
    assert boards[0] == ". . .\n. . .\n. . ."
    assert boards[1].count("X") == 1
    assert boards[2].count("O") == 1
    assert "player_0 (policy)" in said
    assert "player_1 (random)" in said
    assert "over 2 games" in said
    assert not (matches / "watch.gif").exists()


def test_a_board_game_becomes_a_video(matches: Path, tmp_path: Path) -> None:
    assert main(["watch", str(matches), "--save", str(tmp_path / "game.gif")]) == 0
    with Image.open(tmp_path / "game.gif") as image:
        assert image.n_frames >= 6


def test_a_game_of_several_policies_is_drawn(
    several: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watch", str(several), "--sample"]) == 0
    with Image.open(several / "watch.gif") as image:
        assert image.size == (40, 8)
    assert "red (red)" in capsys.readouterr().out


def test_a_policy_that_plays_alone_is_watched_by_its_name(several: Path, tmp_path: Path) -> None:
    assert main(["watch", str(several), "--policy", "pole", "--save", f"{tmp_path}/p.gif"]) == 0
    with Image.open(tmp_path / "p.gif") as image:
        assert image.size == (600, 400)


def test_mistakes_are_told(
    several: Path, matches: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, words in (
        (["--source", "rase"], "source: expected one of race, cart, got 'rase', did you mean"),
        (["--source", "cart", "--against", "random"], "--source: expected with a trial of games"),
        (["--save", "x.avi"], "save: expected a file that ends in"),
        (["--seed", "-1"], "seed: expected 0 to 9.0072e+15, got -1"),
        (["--against", "random"], "against: expected with a source of matches, got 'random'"),
        (["--episodes", "0"], "episodes: expected 1 or more, got 0"),
    ):
        assert main(["watch", str(several), *arguments]) != 0
        assert words in capsys.readouterr().err
    assert main(["watch", str(matches), "--against", ""]) != 0
    assert "opponent: expected random" in capsys.readouterr().err
    assert main(["watch", str(matches), "--against", "v0"]) != 0
    told = "v0: frozen versions play while their trial is trained, and are not exported: expected"
    assert told in capsys.readouterr().err
    text = SEVERAL.replace(DRAWN, RACE)
    trial = run_of(tmp_path, text, "goal.max_frames=1")["path"]
    capsys.readouterr()
    assert main(["watch", str(trial)]) != 0
    assert "it draws nothing: expected `render()`" in capsys.readouterr().err
