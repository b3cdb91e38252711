"""`bray new`: makes a folder with a template and its test, which runs at once."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from bray.goal import Goal
from bray.templates.json_schemas import json_schema_of_all
from bray.templates.loading import load, path_of
from bray.training.algorithm import Algorithm, load_algorithm
from bray_core.errors import AlreadyExistsError, BrayError
from bray_core.files.output_file import check_output_folder
from bray_core.files.trial_folders import PROJECT
from bray_core.trials.experiment import check_name

SCHEMA = "bray.schema.json"
DEMONSTRATE = "demonstrate.py"
_FEW = ("goal.evaluation_episodes=2",)
_ANY_RETURN = ("goal.episode_return=-1e9", "goal.evaluate_at=-1e9")
_ANY_WIN_RATE = ("goal.win_rate=null", "goal.against=null")
"""A run without a goal uses up its budget, and that is success."""


def short(algorithm: type[Algorithm[Any]], goal: Goal | None = None) -> list[str]:
    """Return overrides with which a template runs for seconds and says that all went well.

    Args:
        algorithm: Algorithm of the template.
        goal: Goal of the template; None: a return.
    """
    has_rate = goal is not None and goal.win_rate is not None
    return [*(_ANY_WIN_RATE if has_rate else _ANY_RETURN), *_FEW, *algorithm.short_run]


def make_project(folder: Path, template: str) -> Path:
    """Make a project and return its YAML file.

    Args:
        folder: folder of the project; must not exist yet.
        template: name of a template that ships with bray, or path of a YAML file.

    Raises:
        ConfigError: the template or the folder's name is not valid.
        AlreadyExistsError: the folder exists.
    """
    check_name(folder.name, "name")
    loaded = load(template)
    algorithm = load_algorithm(loaded.algorithm)
    if folder.exists() or folder.is_symlink():
        raise AlreadyExistsError(f"name: {folder} exists already: choose another")
    check_output_folder("name", folder.parent)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
        new = Path(temporary) / folder.name
        (new / "tests").mkdir(parents=True)
        _write(new, folder.name, path_of(template), short(algorithm, loaded.goal))
        if algorithm.takes.demonstrations:
            _demonstrate(new)
        new.rename(folder)  # whole or not at all
    return folder / f"{folder.name}.yaml"


def _write(new: Path, name: str, template: Path, overrides: Sequence[str]) -> None:
    header = f"# yaml-language-server: $schema={SCHEMA}\n"
    (new / f"{name}.yaml").write_text(header + template.read_text())
    (new / SCHEMA).write_text(json.dumps(json_schema_of_all()))
    (new / ".gitignore").write_text(f"{PROJECT}/\n__pycache__/\n")
    (new / "README.md").write_text(_filled("README.md", name, overrides))
    (new / "tests" / "test_project.py").write_text(_filled("test_project.py", name, overrides))


def _filled(file: str, name: str, overrides: Sequence[str]) -> str:
    text = (resources.files("bray") / "project_files" / f"{file}.txt").read_text()
    values = {"NAME": name, "SHORT": repr(list(overrides))}
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], text)


def _demonstrate(new: Path) -> None:
    """Add the script that records demonstrations, and run it."""
    script = resources.files("bray") / "templates" / DEMONSTRATE
    (new / DEMONSTRATE).write_text(script.read_text())
    done = subprocess.run(
        [sys.executable, DEMONSTRATE], cwd=new, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BrayError(f"{DEMONSTRATE} failed: {done.stderr.strip()[-500:]}")
