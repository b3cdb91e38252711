"""`bray new`: a project that runs at once, passes its own tests, trains and serves."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bray.cli.project import short
from bray.games.board_game import connect_four
from bray.templates.loading import load
from bray.training.algorithm import load_algorithm
from bray_actor.gamecores.multi_agent_gamecore import play_matches
from bray_core.cli import main
from bray_core.codec import decode, encode
from bray_model import Manifest
from bray_model.export.export_folder import find_export
from bray_server import Client

BRAY = [sys.executable, "-m", "bray_core.cli"]
TEMPLATES = {
    "cartpole": "ppo",
    "imitation": "bc",
    "imitation-reinforcement": "rl_imitation",
    "league": "ppo",
}


def run(command: list[str], cwd: Path) -> str:
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def serve_and_call(project: Path, *command: str) -> None:
    """Serve the trial of a project's YAML file and call what it exported."""
    ports = ["--tcp-port", "0", "--http-port", "0"] if command[0] == "serve" else []
    with subprocess.Popen(
        [*BRAY, *command, *ports], cwd=project, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            found = (re.search(r"tcp://[\d.]+:\d+", line) for line in process.stdout)
            address = next(match.group() for match in found if match)
            export = find_export(project / "trials" / project.name)
            if "kind: matches" in (project / f"{project.name}.yaml").read_text():
                results = play_matches(connect_four, address, games=2)
                assert [sum(result.values()) for result in results] == [0, 0]
            elif Manifest.read(export).actor is not None:
                said = run(
                    [*BRAY, "play", "cartpole", "--address", address, "--episodes", "2"], project
                )
                assert "mean return" in said
            else:
                with Client(address) as client:
                    reply = decode(client.call(encode([np.zeros(1, np.float32)])))
                assert np.isfinite(reply["outputs"]).all()
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=20)


@pytest.fixture(scope="module")
def walker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new project that has trained for seconds."""
    folder = tmp_path_factory.mktemp("projects")
    run([*BRAY, "new", "walker", "--template", "reinforcement"], folder)
    run([*BRAY, "train", "walker.yaml", *short(load_algorithm("ppo"))], folder / "walker")
    return folder / "walker"


def test_a_new_project_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "walker", "--template", "reinforcement"]) == 0
    walker = tmp_path / "walker"
    found = {path.name for path in walker.iterdir()}
    assert found == {".gitignore", "README.md", "bray.schema.json", "tests", "walker.yaml"}
    header = (walker / "walker.yaml").read_text().splitlines()[0]
    assert header == "# yaml-language-server: $schema=bray.schema.json"
    monkeypatch.chdir(walker)
    assert main(["config", "check", "walker.yaml"]) == 0


@pytest.mark.long
def test_its_own_tests_pass(walker: Path) -> None:
    said = run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], walker)
    assert "2 passed" in said


@pytest.mark.long
def test_the_same_file_serves_what_it_trained(walker: Path) -> None:
    serve_and_call(walker, "serve", "walker.yaml")


@pytest.mark.slow
def test_a_clone_trains_with_its_settings(walker: Path) -> None:
    run([*BRAY, "trials", "clone", "walker", "second"], walker)
    run([*BRAY, "train", "trials/second", "seed=2"], walker)
    assert "seed" in run([*BRAY, "trials", "compare", "walker", "second"], walker)


@pytest.mark.slow
@pytest.mark.parametrize("template", TEMPLATES)
def test_every_template_becomes_a_project_that_trains_and_serves(
    template: str, tmp_path: Path
) -> None:
    run([*BRAY, "new", "mine", "--template", template], tmp_path)
    project = tmp_path / "mine"
    run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], project)
    overrides = short(load_algorithm(TEMPLATES[template]), load(template).goal)
    run([*BRAY, "train", "mine.yaml", *overrides], project)
    serve_and_call(project, "serve", "mine.yaml")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a b"], "name: expected letters"),
        (["tests"], "exists already"),
        (["mine", "--template", "leage"], "did you mean 'league'"),
    ],
)
def test_what_cannot_be_made_is_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests").mkdir()
    assert main(["new", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["tests"]
