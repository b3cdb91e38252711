"""The `bray` command: quick to answer, and helpful when it is called wrongly."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from bray_core.cli import main

HEAVY = ["aiohttp", "gymnasium", "numpy", "onnxruntime", "ray", "rich", "tensorboard", "torch"]


def bray(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bray_core.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_help_lists_the_commands_of_all_packages() -> None:
    done = bray("--help")
    assert done.returncode == 0
    commands = "train serve play export validate bench quantize view new trials config"
    for command in commands.split():
        assert f"\n    {command} " in done.stdout


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys, json\nfrom bray_core.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "sys.stderr.write(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert not set(HEAVY) & set(json.loads(done.stderr))


def test_an_unknown_command_names_the_closest() -> None:
    done = bray("trian")
    assert done.returncode == 2
    assert "did you mean 'train'?" in done.stderr


def test_no_command_says_so() -> None:
    done = bray()
    assert done.returncode == 2
    assert "--help" in done.stderr


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return what a command says that is refused; in this process, as that takes no import."""
    assert main(list(arguments)) == 2
    return capsys.readouterr().err


def test_playing_against_nobody_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    nobody = ("--address", "tcp://127.0.0.1:1", "--episodes", "1")
    assert "bray serve" in refused(capsys, "play", "cartpole", *nobody)


def test_an_unknown_environment_names_the_closest(capsys: pytest.CaptureFixture[str]) -> None:
    assert "CartPole-v1" in refused(capsys, "play", "CartPol-v1")


def test_a_bad_address_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "play", "cartpole", "--address", "127.0.0.1:7300")
    assert "tcp://host:port" in said


def test_viewing_a_folder_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no folder /nonexistent" in refused(capsys, "view", "/nonexistent")


def test_debug_shows_where_an_error_came_from() -> None:
    command = [sys.executable, "-m", "bray_core.cli", "view", "/nonexistent"]
    environment = {**os.environ, "BRAY_DEBUG": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=environment
    )
    assert "Traceback" in done.stderr
