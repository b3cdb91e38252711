"""What is recorded of a launch, in real processes and a real repository."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from bray_core.errors import CodecError
from bray_core.files.trial_folders import newest_launch
from bray_core.trials import git
from bray_core.trials.experiment import Experiment
from bray_core.trials.launch_record import CHANGES, RECORD, LaunchRecord
from bray_core.trials.trial import Trial

BEGIN = (
    "import os, sys; from pathlib import Path; from bray_core import Experiment; "
    "e = Experiment.open(Path(sys.argv[1]), 'trial', {'seed': 3, 'rate': 0.1}); "
)


def launch(project: Path, script: str, *arguments: str, cwd: Path | None = None) -> LaunchRecord:
    """LaunchRecord a trial in a process of its own and return its record."""
    command = [sys.executable, "-c", BEGIN + script, str(project), *arguments]
    subprocess.run(command, cwd=cwd, check=False)
    folder = newest_launch(project / "trial")
    assert folder is not None
    record = LaunchRecord.read(folder)
    assert record is not None
    return record


def repository(path: Path) -> str:
    """Make a repository with one commit of `code.py` and return the commit."""
    path.mkdir()
    (path / "code.py").write_text("rate = 1\n")
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    for command in (("init", "-q"), ("add", "."), (*identity, "commit", "-q", "-m", "first")):
        subprocess.run(["git", *command], cwd=path, check=True)
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=path, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_a_launch_records_where_it_ran_and_of_what(tmp_path: Path) -> None:
    code = tmp_path / "code"
    commit = repository(code)
    (code / "code.py").write_text("rate = 2\n")
    (code / ".env").write_text("TOKEN=untracked\n")
    record = launch(tmp_path, "e.close()", "--token", "hunter2", "hub.api_key=hunter3", cwd=code)
    assert record.ending == "finished"
    assert record.ended_s is not None
    assert record.ended_s >= record.began_s
    assert (record.commit, record.is_changed, record.seed) == (commit, True, 3)
    assert record.folder == str(code)
    assert record.host == os.uname().nodename
    assert record.packages["numpy"] == version("numpy")
    assert record.packages["bray-core"] == version("bray-core")
    assert record.command[-3:] == ("--token", "***", "hub.api_key=***")
    folder = newest_launch(tmp_path / "trial")
    assert folder is not None
    diff = (folder / CHANGES).read_text()
    assert "-rate = 1" in diff
    assert "+rate = 2" in diff
    assert yaml.safe_load((folder / "config.yaml").read_text()) == {"seed": 3, "rate": 0.1}
    written = b"".join(path.read_bytes() for path in folder.iterdir())
    assert b"untracked" not in written
    assert b"hunter" not in written


def test_nothing_of_the_environment_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRAY_TOKEN", "hunter2")
    launch(tmp_path, "e.close()")
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert written
    assert not any(b"hunter2" in path.read_bytes() for path in written)


@pytest.mark.parametrize(
    ("script", "ending", "error"),
    [
        ("e.close(ValueError('no'))", "failed", "ValueError: no"),
        ("e.close(KeyboardInterrupt())", "interrupted", None),
        ("e.close(SystemExit(128 + 15))", "interrupted", None),  # told to end by SIGTERM
        ("e.close(SystemExit(0))", "finished", None),
        ("e.close(SystemExit(3))", "failed", "SystemExit: 3"),
        ("e.close(ValueError('x' * 9999))", "failed", "ValueError: " + "x" * 1988),
    ],
)
def test_how_it_ended(tmp_path: Path, script: str, ending: str, error: str | None) -> None:
    record = launch(tmp_path, script)
    assert (record.ending, record.error) == (ending, error)
    assert Trial(tmp_path / "trial").state == ending


def test_a_launch_that_is_killed_is_shown_as_crashed_and_the_next_says_so(tmp_path: Path) -> None:
    record = launch(tmp_path, f"os.kill(os.getpid(), {int(signal.SIGKILL)})")
    assert record.ending is None
    trial = Trial(tmp_path / "trial")
    assert trial.state == "crashed"
    with_a_next = Experiment.open(tmp_path, "trial")
    assert trial.state == "running"
    with_a_next.close()
    assert trial.state == "finished"
    log = (trial.path / "bray.log").read_text()
    assert f"process {record.pid}) was killed: this one goes on" in log


def test_a_long_diff_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository(tmp_path / "code")
    (tmp_path / "code" / "code.py").write_text("x = 1\n" * 1000)
    monkeypatch.setattr(git, "MAX_DIFF_BYTES", 500)
    state = git.git_state(tmp_path / "code", tmp_path / "diff")
    assert state is not None
    assert state.is_changed
    text = (tmp_path / "diff").read_text()
    assert len(text) < 600
    assert "[cut: " in text


def test_a_folder_as_it_was_committed_has_no_diff(tmp_path: Path) -> None:
    commit = repository(tmp_path / "code")
    state = git.git_state(tmp_path / "code", tmp_path / "diff")
    assert state == git.GitState(commit, is_changed=False)
    assert not (tmp_path / "diff").exists()


def test_outside_of_a_repository_or_without_git_there_is_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert git.git_state(tmp_path, tmp_path / "diff") is None
    repository(tmp_path / "code")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git.git_state(tmp_path / "code", tmp_path / "diff") is None
    assert not (tmp_path / "diff").exists()


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (["x", "--token-env", "NAME"], ("x", "--token-env", "NAME")),
        (["x", "--secret=a=b"], ("x", "--secret=***")),
        (["x", "https://me:pw@host/x"], ("x", "https://***@host/x")),
        (["x", "PASSWORD=p", "tokens", "y"], ("x", "PASSWORD=***", "tokens", "y")),
    ],
)
def test_secrets_in_the_command_line_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], shown: tuple[str, ...]
) -> None:
    monkeypatch.setattr(sys, "argv", command)
    assert LaunchRecord.begin(tmp_path, None).command == shown


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "pid": 3}'])
def test_a_broken_record_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / RECORD).write_text(text)
    with pytest.raises(CodecError, match=r"launch\.json: not the record of a launch"):
        LaunchRecord.read(tmp_path)


def test_a_broken_record_does_not_keep_a_launch_out(tmp_path: Path) -> None:
    first = Experiment.open(tmp_path, "trial")
    first.close()
    (first.launch / RECORD).write_text("{")
    Experiment.open(tmp_path, "trial").close()
    assert "not the record of a launch" in (first.path / "bray.log").read_text()


def test_fields_of_a_later_version_are_left_aside(tmp_path: Path) -> None:
    record = LaunchRecord.begin(tmp_path, 1)
    content = json.loads(record.to_json()) | {"later": 1}
    (tmp_path / RECORD).write_text(json.dumps(content))
    assert LaunchRecord.read(tmp_path) == record
    assert LaunchRecord.read(tmp_path / "other") is None
