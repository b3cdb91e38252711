"""Names of a user's code, and code of a name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bray_core.errors import ConfigError
from bray_core.process.user_modules import code_name, find_user_code, is_of_program

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
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "run\n"


def test_a_notebook_is_its_own_module() -> None:
    lines = (
        "from bray_core.process.user_modules import code_name, find_user_code, is_of_program\n"
        "class Mine: ...\n"
        "assert code_name(Mine) == '__main__:Mine', code_name(Mine)\n"
        "assert find_user_code('__main__:Mine') is Mine and is_of_program('__main__:Mine')\n"
    )
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
