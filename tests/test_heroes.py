"""The template of examples/heroes: two policies with networks of their own play a game in C++."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import bray
from bray.composition.train import train_composition
from bray.composition.whole_run import completed_goal
from bray.goal import Outcome
from bray.templates.loading import load

ROOT = Path(__file__).parent.parent
HEROES = ROOT / "examples" / "heroes"


@pytest.fixture(scope="module")
def game(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the compiled game and its networks."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    folder = tmp_path_factory.mktemp("heroes")
    for name in ("nets.py", "ogre.py"):
        shutil.copy(HEROES / name, folder)
    flags = ["-std=c++17", "-O0", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread"]
    include = f"-I{ROOT / 'clients' / 'cpp' / 'include'}"
    source, target = str(HEROES / "heroes.cpp"), str(folder / "heroes")
    subprocess.run(["g++", *flags, include, source, "-o", target], check=True)
    return folder


def train(trial: Path, *overrides: str, name: str = "heroes.yaml") -> Outcome:
    torch.set_num_threads(1)
    template = load(str(HEROES / name), overrides)
    assert template.composition is not None
    with bray.init(trial.parent, trial.name) as run:
        return train_composition(run, template.composition, completed_goal(template))


def test_the_template_is_short() -> None:
    assert len((HEROES / "heroes.yaml").read_text().splitlines()) < 30


@pytest.mark.long  # the compiler takes ten seconds
def test_both_heroes_are_trained(
    game: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(game)
    steps = [f"trainers.{name}.steps_per_replay=128" for name in ("sword", "bow")]

    outcome = train(tmp_path / "short", *steps, "goal.max_frames=1024", "goal.episode_return=null")

    assert outcome.version >= 2
    for name in ("sword", "bow"):
        versions = sorted((tmp_path / "short" / "models" / name / "versions").iterdir())
        assert len(versions) >= 2


@pytest.mark.long
def test_heroes_learn_beside_an_ogre_whose_script_the_template_names(
    game: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(game)
    steps = [f"trainers.{name}.steps_per_replay=144" for name in ("sword", "bow")]
    few = ("trainers.sword.minibatch_size=48", "trainers.bow.minibatch_size=48")
    few += ("goal.max_frames=1024", "goal.episode_return=null")

    outcome = train(tmp_path / "ogre", *steps, *few, name="ogre.yaml")

    assert outcome.version >= 2
    assert outcome.frames < 1024 + 3 * 144, "the ogre's steps do not count"
    models = [path.name for path in (tmp_path / "ogre" / "models").iterdir()]
    assert sorted(models) == ["bow", "sword"]


@pytest.mark.slow
@pytest.mark.isa
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("hero", ["sword", "bow"])
def test_the_heroes_learn_to_beat_the_ogre(
    game: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hero: str, seed: int
) -> None:
    """Untrained heroes mostly fall, which is -1; who lives and wins gets 1, and what it dealt."""
    monkeypatch.chdir(game)

    outcome = train(tmp_path / "learn", f"goal.agent={hero}", f"seed={seed}")

    assert outcome.reached, outcome
