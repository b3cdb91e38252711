"""Curricula, callbacks and metrics of one's own in games and matches, of all ways to play them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Literal

import pytest
from hooked_game import Notes
from test_composition_runs import RACE

import bray
from bray.composition import main_evaluation
from bray.composition.train import train_composition
from bray.composition.whole_run import completed_goal
from bray.templates.callbacks import make_callbacks
from bray.templates.loading import load, parse
from bray_core.errors import ConfigError, SettingsError

GAME = f"{Path(__file__).with_name('hooked_match.py')}:HookedRace"
CURRICULUM = "curriculum: {difficulty: {start: 0.0, end: 1.0, frames: 256, shape: constant}}"
AGENTS = f"""
trainers:
  red: &ppo {{algorithm: ppo, steps_per_replay: 64, minibatch_size: 64, epochs: 1}}
  blue: *ppo
models: {{red: {{hidden: [8]}}, blue: {{hidden: [8]}}}}
sources:
  race: {{kind: agents, environment: "{GAME}", num_envs: 2, agents: {{red: red, blue: blue}},
    info_metrics: [turns], {CURRICULUM}}}
goal: {{agent: red, max_frames: 640}}
callbacks: ["hooked_game:Notes"]
"""
MATCHES = f"""
algorithm: ppo
model: {{hidden: [8]}}
trainer: {{steps_per_replay: 64, minibatch_size: 64, epochs: 1}}
source: {{kind: matches, environment: "{GAME}", num_envs: 2, info_metrics: [turns],
  {CURRICULUM}, opponents: {{rule: past, freeze_every: 100}}}}
goal: {{max_frames: 640}}
callbacks: ["hooked_game:Notes"]
"""
COMMAND = (
    f"{sys.executable} -m bray_actor.gamecores.multi_agent_gamecore --env {GAME} "
    "--address {address} --lanes 2"
)
SPACES = "{observation: {shape: [2]}, action: {discrete: 3}}"
PLAYED = f'environment: "{GAME}", num_envs: 2'
OVER_THE_WIRE = f'command: "{COMMAND}", lanes: 4, spaces: {SPACES}'


def over_the_wire(text: str) -> str:
    """Return a template whose games are played by processes that call."""
    called = text.replace(PLAYED, OVER_THE_WIRE).replace("info_metrics: [turns],", "")
    sides = "sides: {red: red, blue: blue}, opponents"
    return called.replace("opponents", sides)


TEMPLATES = {
    "agents": AGENTS,
    "matches": MATCHES,
    "agents over the wire": over_the_wire(AGENTS),
    "matches over the wire": over_the_wire(MATCHES),
}


@pytest.fixture(autouse=True)
def heard() -> Any:
    Notes.heard.clear()
    yield Notes.heard
    Notes.heard.clear()


def told(kind: str) -> list[Any]:
    return [what for name, what in Notes.heard if name == kind]


def train(
    folder: Path, text: str, trial: str = "trial", runtime: Literal["local", "ray"] = "local"
) -> tuple[list[Any], dict[str, float]]:
    """Train a template; return the episodes that its callbacks heard of, and the run's metrics."""
    Notes.heard.clear()
    (folder / "mine.yaml").write_text(text)
    template = load(str(folder / "mine.yaml"))
    assert template.composition is not None
    with (
        pytest.MonkeyPatch.context() as patch,
        bray.init(folder, trial, runtime) as run,
    ):
        patch.setattr(main_evaluation.MainEvaluation, "__call__", lambda _: [0.0])
        for callback in make_callbacks(template.callbacks):
            run.listen(callback)
        train_composition(run, template.composition, completed_goal(template))
        metrics = run.metrics()
    return told("episode"), metrics


def check(episodes: list[Any], metrics: dict[str, float], text: str) -> None:
    """Check that the callbacks heard of games that followed the curriculum."""
    seen = [one.metrics["difficulty"] for one in episodes]
    assert set(seen) == {0.0, 1.0}
    assert seen[0] == 0.0
    assert seen[-1] == 1.0
    if "info_metrics" in text:
        assert all(one.metrics["turns"] >= one.length for one in episodes)
    is_red = {one.metrics["is_red"] for one in episodes}
    assert is_red == ({1.0} if "agents:" in text else is_red & {0.0, 0.5, 1.0})
    assert any(name.startswith("episode/difficulty") for name in metrics)
    assert next(name for name, _ in Notes.heard) == "start"
    assert told("end")
    assert told("checkpoint")


@pytest.mark.parametrize("name", ["agents", "matches"])
def test_games_follow_a_curriculum_and_tell_metrics(name: str, tmp_path: Path) -> None:
    check(*train(tmp_path, TEMPLATES[name]), TEMPLATES[name])


@pytest.mark.parametrize("name", ["agents over the wire", "matches over the wire"])
def test_simulators_of_games_follow_a_curriculum_and_tell_metrics(
    name: str, tmp_path: Path
) -> None:
    check(*train(tmp_path, TEMPLATES[name]), TEMPLATES[name])


@pytest.mark.long
def test_a_curriculum_over_the_wire_repeats(tmp_path: Path) -> None:
    text = TEMPLATES["matches over the wire"]
    first, _ = train(tmp_path, text, "first")
    again, _ = train(tmp_path, text, "again")
    assert first == again


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.timeout(280)
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("name", TEMPLATES)
def test_games_on_ray_follow_a_curriculum_and_tell_metrics(name: str, tmp_path: Path) -> None:
    text = TEMPLATES[name].replace("max_frames: 640", "max_frames: 2000")
    check(*train(tmp_path, text, runtime="ray"), TEMPLATES[name])


def test_games_that_take_no_options_are_refused(tmp_path: Path) -> None:
    text = AGENTS.replace(GAME, RACE)
    with pytest.raises(ConfigError, match=r"curriculum: expected an environment that takes option"):
        train(tmp_path, text)
    spiel = AGENTS.replace(GAME, "open_spiel:kuhn_poker")
    with pytest.raises(SettingsError, match=r"curriculum: expected none for a game of OpenSpiel"):
        parse(spiel, "mine.yaml")
    wrong = AGENTS.replace("{difficulty: {start: 0.0,", "{difficulty: {strat: 0.0,")
    with pytest.raises(SettingsError, match=r"strat.*did you mean 'start'"):
        parse(wrong, "mine.yaml")
