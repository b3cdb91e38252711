"""The `bray` command: quick to answer, and helpful when it is called wrongly."""

from __future__ import annotations

import json
import subprocess
import sys

HEAVY = ["aiohttp", "gymnasium", "onnxruntime", "ray", "rich", "tensorboard", "torch"]


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


def test_playing_against_nobody_says_what_to_do() -> None:
    done = bray("play", "cartpole", "--address", "tcp://127.0.0.1:1", "--episodes", "1")
    assert done.returncode == 2
    assert "bray serve" in done.stderr


def test_an_unknown_environment_names_the_closest() -> None:
    done = bray("play", "CartPol-v1")
    assert done.returncode == 2
    assert "CartPole-v1" in done.stderr


def test_a_bad_address_is_refused() -> None:
    done = bray("play", "cartpole", "--address", "127.0.0.1:7300")
    assert done.returncode == 2
    assert "tcp://host:port" in done.stderr


def test_viewing_a_folder_that_is_not_there() -> None:
    done = bray("view", "/nonexistent")
    assert done.returncode == 2
    assert "no folder /nonexistent" in done.stderr


def test_debug_shows_where_an_error_came_from(monkeypatch: object) -> None:
    import os

    command = [sys.executable, "-m", "bray_core.cli", "view", "/nonexistent"]
    environment = {**os.environ, "BRAY_DEBUG": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=environment
    )
    assert "Traceback" in done.stderr
