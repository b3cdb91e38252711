"""Names of a user's code, and code of a name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bray_core.errors import ConfigError
from bray_core.process.user_modules import (
    code_name,
    find_user_code,
    is_of_program,
    module_command,
)

_PROGRAM = """
from bray_core.process.user_modules import code_name, find_user_code, is_of_program
from pathlib import Path

print("run")

class Mine:
    class Inner: ...

def local():
    class Hidden: ...
    return Hidden

name = code_name(Mine)
assert name == f"{Path(__file__).resolve()}:Mine", name
assert find_user_code(name) is Mine and find_user_code("program.py:Mine") is Mine
assert is_of_program(name) and is_of_program("program.py:Mine") and is_of_program("__main__:Mine")
assert not is_of_program("json:loads") and not is_of_program("other.py:Mine")
for nameless in (Mine.Inner, local(), lambda: 0, Mine(), 3):
    assert code_name(nameless) is None, nameless
Shadowed = Mine
Mine = None
assert code_name(Shadowed) is None
"""


def _run(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_lies_at_the_top_of_a_module_has_a_name() -> None:
    assert code_name(ConfigError) == "bray_core.errors:ConfigError"
    assert find_user_code("bray_core.errors:ConfigError") is ConfigError
    assert not is_of_program("bray_core.errors:ConfigError")


@pytest.mark.parametrize("nameless", [lambda: 0, 3, "text", [], print])
def test_what_has_no_name_has_none(nameless: Any) -> None:
    expected = "builtins:print" if nameless is print else None
    assert code_name(nameless) == expected


def test_the_running_program_is_not_run_again(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(_PROGRAM)
    assert _run(tmp_path, "program.py") == "run\n"


def test_a_notebook_is_its_own_module() -> None:
    lines = (
        "from bray_core.process.user_modules import code_name, find_user_code, is_of_program\n"
        "class Mine: ...\n"
        "assert code_name(Mine) == '__main__:Mine', code_name(Mine)\n"
        "assert find_user_code('__main__:Mine') is Mine and is_of_program('__main__:Mine')\n"
    )
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_module_beside_a_program_that_runs_elsewhere_is_named_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "games").mkdir()
    (tmp_path / "games/beside.py").write_text("class Game: ...\n")
    (tmp_path / "games/program.py").write_text(
        "from beside import Game\n"
        "from bray_core.process.user_modules import code_name, find_user_code\n"
        "name = code_name(Game)\n"
        "assert find_user_code(name) is Game and find_user_code('beside:Game') is Game\n"
        "print(name)\n"
    )
    (tmp_path / "linked").symlink_to("games")
    file = (tmp_path / "games/beside.py").resolve()
    assert _run(tmp_path, "games/program.py") == f"{file}:Game\n"
    assert _run(tmp_path, str(tmp_path / "linked/program.py")) == f"{file}:Game\n"
    assert _run(tmp_path / "games", "program.py") == "beside:Game\n"


def test_a_program_in_a_package_is_its_module(tmp_path: Path) -> None:
    (tmp_path / "games").mkdir()
    (tmp_path / "games/__init__.py").touch()
    (tmp_path / "games/beside.py").write_text("class Game: ...\n")
    (tmp_path / "games/program.py").write_text(
        "from .beside import Game\n"
        "from bray_core.process.user_modules import code_name, find_user_code, is_of_program\n"
        "class Mine(Game): ...\n"
        "if __name__ == '__main__':\n"
        "    assert find_user_code(name := code_name(Mine)) is Mine and is_of_program(name)\n"
        "    print(name)\n"
    )
    name = _run(tmp_path, "-m", "games.program").strip()
    assert name == "games.program:Mine"
    _run(tmp_path, "-c", "from bray_core.process.user_modules import find_user_code as find\n"
         f"assert find({name!r}).__name__ == 'Mine'")  # fmt: skip


def test_another_process_finds_what_this_one_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "far_away.py").write_text("import sys\nprint(__name__, sys.argv[1:])\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])  # which Python leaves alone
    done = subprocess.run(
        [*module_command("far_away"), "--seed", "1"], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "__main__ ['--seed', '1']\n", done.stderr
