"""`bray new`: makes a folder with a template and its test, which runs at once."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from importlib import resources
from pathlib import Path

from bray.templates.schema import json_schema_of_all
from bray.templates.template import load, path_of
from bray_core.errors import AlreadyExistsError, BrayError
from bray_core.trials.experiment import check_name
from bray_core.trials.trial_paths import PROJECT

SCHEMA = "bray.schema.json"
DEMONSTRATE = "demonstrate.py"
_IMITATING = ("bc", "rl_imitation")
_ALWAYS = ("goal.episode_return=-1e9", "goal.evaluate_at=-1e9", "goal.evaluation_episodes=2")
_SHORT = {
    "bc": ("trainer.max_steps=20", "trainer.evaluate_every=20"),
    "rl_imitation": ("trainer.cloning_steps=20", "goal.max_frames=1024"),
    "league": ("trainer.rounds=3", "trainer.rating_games=2"),
    "selfplay": ("goal.max_frames=512", "trainer.rating_games=2"),
    "alphazero": ("goal.max_frames=1024",),
}
"""Overrides that make a run of seconds, by recipe; `short` has those of all others."""


def short(recipe: str) -> list[str]:
    """Return overrides with which a recipe runs for seconds and then reports success."""
    return [*_ALWAYS, *_SHORT.get(recipe, ("goal.max_frames=2048",))]


def make_project(folder: Path, template: str) -> Path:
    """Make a project and return its YAML file.

    Args:
        folder: folder of the project; must not exist yet.
        template: name of a template that ships with bray, or path of a YAML file.

    Raises:
        ConfigError: the template or the folder's name is not valid.
        AlreadyExistsError: the folder exists.
    """
    check_name(folder.name)
    settings = load(template)
    if folder.exists():
        raise AlreadyExistsError(f"name: {folder} exists already: choose another")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
        new = Path(temporary) / folder.name
        (new / "tests").mkdir(parents=True)
        _write(new, folder.name, path_of(template), settings.recipe)
        if settings.recipe in _IMITATING:
            _demonstrate(new)
        new.rename(folder)  # whole or not at all
    return folder / f"{folder.name}.yaml"


def _write(new: Path, name: str, template: Path, recipe: str) -> None:
    header = f"# yaml-language-server: $schema={SCHEMA}\n"
    (new / f"{name}.yaml").write_text(header + template.read_text())
    (new / SCHEMA).write_text(json.dumps(json_schema_of_all()))
    (new / ".gitignore").write_text(f"{PROJECT}/\n__pycache__/\n")
    (new / "README.md").write_text(_filled("README.md", name, recipe))
    (new / "tests" / "test_project.py").write_text(_filled("test_project.py", name, recipe))


def _filled(file: str, name: str, recipe: str) -> str:
    text = (resources.files("bray") / "project_files" / f"{file}.txt").read_text()
    values = {"NAME": name, "SHORT": repr(short(recipe))}
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
