"""What other users of the machine may not read: Ray's token, Ray's session folders."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from bray_core.errors import ConfigError
from bray_core.remote import ray_secrets


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def modes(home: Path) -> tuple[int, int]:
    return mode(home / ".ray"), mode(home / ".ray" / "auth_token")


def test_a_token_is_the_owners_alone_whatever_the_umask(home: Path) -> None:
    before = os.umask(0)
    try:
        ray_secrets.secure_token(create=True)
    finally:
        os.umask(before)
    assert modes(home) == (0o700, 0o600)
    token = ray_secrets.token_file().read_text()
    assert len(token) == 64
    ray_secrets.secure_token(create=True)
    assert ray_secrets.token_file().read_text() == token, "it stays"
    assert [path.name for path in (home / ".ray").iterdir()] == ["auth_token"]


def test_one_that_is_there_is_closed_to_others(home: Path) -> None:
    (home / ".ray").mkdir(mode=0o755)
    ray_secrets.token_file().write_text("given")
    ray_secrets.token_file().chmod(0o644)
    ray_secrets.secure_token(create=False)
    assert modes(home) == (0o700, 0o600)
    assert ray_secrets.token_file().read_text() == "given"


def test_an_empty_one_is_filled(home: Path) -> None:
    (home / ".ray").mkdir()
    ray_secrets.token_file().touch(mode=0o644)
    ray_secrets.secure_token(create=True)
    assert modes(home) == (0o700, 0o600)
    assert len(ray_secrets.token_file().read_text()) == 64


@pytest.mark.parametrize(
    "given",
    [{"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_TOKEN": "a"}, {"RAY_AUTH_TOKEN_PATH": "/a/token"}],
)
def test_none_is_made_where_the_user_says_otherwise(
    home: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, str]
) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    ray_secrets.secure_token(create=True)
    assert not (home / ".ray").exists()


def test_a_home_that_cannot_be_written_is_named(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "file").touch()
    monkeypatch.setenv("HOME", str(home / "file"))
    with pytest.raises(ConfigError, match=r"cannot write its token to .*set RAY_AUTH_TOKEN"):
        ray_secrets.secure_token(create=True)


def test_processes_that_make_it_together_have_the_same_one(home: Path) -> None:
    script = """
from bray_core.remote import ray_secrets
ray_secrets.secure_token(create=True)
print(ray_secrets.token_file().read_text())
"""
    processes = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) for _ in range(4)
    ]
    tokens = {process.communicate(timeout=60)[0].strip() for process in processes}
    assert len(tokens) == 1
    assert len(tokens.pop()) == 64


def test_sessions_lie_in_a_folder_of_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_secrets, "_MAX_FOLDER_CHARS", 500)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    own = tmp_path / f"ray-{os.geteuid()}"
    own.mkdir(mode=0o777)
    own.chmod(0o777)
    assert ray_secrets.session_folder() == str(own / "ray")
    assert mode(own) == 0o700
    own.rmdir()
    own.symlink_to(tmp_path)
    assert ray_secrets.session_folder() != str(own / "ray"), "another user may have made the link"


def test_a_path_too_long_for_sockets_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 60)
    long.mkdir()
    monkeypatch.setenv("RAY_TMPDIR", str(long))
    assert ray_secrets.session_folder() == f"/tmp/ray-{os.geteuid()}/ray"
