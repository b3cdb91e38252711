"""What bray sets for Ray, in processes that import it in either order."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, sys, types
if sys.argv[1] == "after":
    sys.modules["ray"] = types.ModuleType("ray")
import bray_core
print(os.environ.get("RAY_ENABLE_UV_RUN_RUNTIME_ENV"), os.environ.get("RAY_AUTH_MODE"))
"""


def variables(home: Path, order: str, **given: str) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, order],
        env=environment | {"HOME": str(home)} | given,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


@pytest.fixture
def with_token(tmp_path: Path) -> Path:
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("secret")
    return tmp_path


def test_before_ray_its_token_is_sent_and_uv_run_is_left_alone(
    with_token: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert variables(with_token, "before") == "0 token"
    assert variables(tmp_path_factory.mktemp("no-token"), "before") == "0 None"


def test_a_ray_that_is_imported_already_is_not_told_another_mode(with_token: Path) -> None:
    """It would then refuse the token of the cluster that it starts itself."""
    assert variables(with_token, "after") == "0 None"


def test_what_the_user_has_set_stays(with_token: Path) -> None:
    given = {"RAY_AUTH_MODE": "disabled", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "1"}
    assert variables(with_token, "before", **given) == "1 disabled"
