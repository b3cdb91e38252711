"""Sources of one's own really run, in both forms of a template; what they lack is refused."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import own_sources
import pytest
from test_composition_runs import run_of

import bray
from bray.composition.train import train_composition
from bray.sources.source_kind import SourceKindPlay, find_source_kind
from bray.templates.loading import load
from bray_core import cli
from bray_core.errors import ConfigError

HERE = Path(own_sources.__file__)
POLE = f"""
algorithm: ppo
model: {{hidden: [8]}}
source: {{kind: "{HERE}:PoleSource", num_envs: 2}}
trainer: {{steps_per_replay: 64, epochs: 2, minibatch_size: 32}}
goal: {{max_frames: 300, evaluation_episodes: 2}}
"""
DUEL = f"""
models: {{red: {{hidden: [8]}}, blue: {{hidden: [8]}}}}
trainers:
  red: {{algorithm: ppo, steps_per_replay: 64, epochs: 2, minibatch_size: 32}}
  blue: {{algorithm: dqn, batch_size: 16, steps_per_collect: 8, replays_per_collect: 2}}
buffers: {{blue: {{warmup_frames: 40}}}}
agents: {{red: {{}}, blue: {{}}}}
sources:
  race: {{kind: "{HERE}:DuelSource", num_envs: 2, goal_line: 5, agents: {{red: red, blue: blue}}}}
goal: {{agent: red, max_frames: 400, evaluation_episodes: 3}}
"""


def test_one_player_of_the_short_form_learns_and_training_counts(tmp_path: Path) -> None:
    found = run_of(tmp_path, POLE)
    assert found["weights"]["policy"][0] > 1
    assert found["outcome"].frames == 320  # five turns of 64 steps, all of them the learner's
    assert 0 < len(found["outcome"].episode_returns) <= 2


def test_two_learners_of_the_full_form_are_credited_and_evaluated(tmp_path: Path) -> None:
    first = run_of(tmp_path, DUEL, trial="first")
    again = run_of(tmp_path, DUEL, trial="again", exports=False)
    assert first["weights"] == again["weights"]
    assert all(version > 1 for version, _ in first["weights"].values())
    assert len(first["outcome"].episode_returns) == 3
    assert set(first["outcome"].episode_returns) <= {-1.0, 1.0}
    manifests = list((first["path"] / "models" / "red" / "onnx").glob("*/manifest.json"))
    assert json.loads(manifests[0].read_text())["actor"]["config"]["agents"] == ["red"]


def test_one_policy_plays_both_sides_of_a_runner_that_tells_whose_steps(tmp_path: Path) -> None:
    found = run_of(tmp_path, POLE.replace("PoleSource", "DuelSource"))
    assert found["weights"]["policy"][0] > 1
    assert len(found["outcome"].episode_returns) == 2


def test_a_script_sits_beside_a_learner(tmp_path: Path) -> None:
    text = POLE.replace("PoleSource", "DuelSource").replace(
        "num_envs: 2", "num_envs: 2, agents: {red: policy, blue: rival}"
    )
    found = run_of(tmp_path, text + "agents: {policy: {}, rival: {play: random}}\n")
    assert found["weights"]["policy"][0] > 1


def test_a_replay_learns_from_a_source_of_ones_own(tmp_path: Path) -> None:
    text = POLE.replace("ppo", "dqn").replace(
        "{steps_per_replay: 64, epochs: 2, minibatch_size: 32}",
        "{batch_size: 16, steps_per_collect: 8}\nbuffer: {warmup_frames: 40}",
    )
    assert run_of(tmp_path, text)["weights"]["policy"][0] > 1


def test_a_class_travels_to_workers_as_text() -> None:
    config = own_sources.DuelSource.Config(goal_line=7)
    play = SourceKindPlay.of(
        "race", f"{HERE}:DuelSource", config, seats={}, quotas={}, num_workers=1, seed=1
    )
    assert b"goal_line" in (packed := pickle.dumps(play))
    assert b"Config" not in packed.replace(b"SourceKindConfig", b"")


@pytest.mark.ray
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize(
    ("text", "names"),
    [(POLE, ["policy"]), pytest.param(DUEL, ["red", "blue"], marks=pytest.mark.long)],
)
def test_workers_on_ray_find_the_class_by_its_name(
    tmp_path: Path, text: str, names: list[str]
) -> None:
    (tmp_path / "t.yaml").write_text(text + "actor: {num_workers: 2}\n")
    composition = load(str(tmp_path / "t.yaml")).composition
    assert composition is not None
    goal = composition.goal.completed(reward_threshold=None, max_frames=400)
    with bray.init(tmp_path, "trial", "ray") as run:
        outcome = train_composition(run, composition, goal)
        assert outcome.frames >= 300
        assert all(run.models[name].version > 1 for name in names)


@pytest.mark.parametrize(
    ("name", "words"),
    {
        "NotASource": r"expected a subclass of bray\.sources\.source_kind\.SourceKind, got <class",
        "HalfSource": r"expected the methods runner, got none",
        "PlainConfigSource": r"got a plain class: write @dataclass\(frozen=True, kw_only=True\)",
        "ForeignConfigSource": r"expected its Config to be a dataclass derived from .*got <class",
        "TakenNameSource": r"Config\.agents: expected another name: every source has a 'agents'",
        "UncalledSource": r"runner: .* takes \(seats, \*, quotas, seed, worker\), got \(seats",
        "UnjudgedSource": r"evaluate: .* takes \(seats, \*, agents, episodes, seed\), got \(seats",
        "NoSuchSource": r"has no attribute 'NoSuchSource'",
    }.items(),
)
def test_a_class_that_lacks_something_is_refused(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "t.yaml").write_text(POLE.replace("PoleSource", name))
    with pytest.raises(ConfigError, match=rf"sources\.source\.kind: .*{words}"):
        load(str(tmp_path / "t.yaml"))


@pytest.mark.parametrize(
    ("name", "words"),
    {
        "ListedSource": r"ListedSource\.spaces: expected Spaces by the agents' names, got \[",
        "RawSource": r"RawSource\.spaces: expected Spaces .*got 4 for 'player': make them with",
        "NoRunnerSource": r"expected a runner, such as bray_actor\.Runner, got object without run",
    }.items(),
)
def test_what_it_makes_is_looked_at(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=rf"sources\.source: {words}|{words}"):
        run_of(tmp_path, POLE.replace("PoleSource", name))


def test_a_runner_of_several_learners_must_say_whose_steps(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"take_frames_by_seat and tell.*since blue, red learn"):
        run_of(tmp_path, DUEL.replace("DuelSource", "SilentSource"))


def test_a_source_needs_somebody_who_learns(tmp_path: Path) -> None:
    text = DUEL.replace("blue: {}}\nsources", "blue: {}, idle: {play: random}}\nsources")
    idle = f'  idle: {{kind: "{HERE}:PoleSource", agents: {{"*": idle}}}}\n'
    words = r"sources\.idle: expected an agent that learns, got none"
    with pytest.raises(ConfigError, match=words):
        run_of(tmp_path, text.replace("goal: {agent", f"{idle}goal: {{agent"))


@pytest.mark.parametrize("results", [7, [], [1.0, float("nan")], ["much"]])
def test_results_of_an_evaluation_are_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, results: Any
) -> None:
    found = find_source_kind(f"{HERE}:PoleSource")
    monkeypatch.setattr(found, "evaluate", lambda self, seats, **_: results)
    words = r"sources\.source: PoleSource\.evaluate: expected the results of one episode or more"
    with pytest.raises(ConfigError, match=words):
        run_of(tmp_path, POLE.replace("max_frames: 300", "max_frames: 64"))


def test_its_settings_are_checked_as_any_others(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(DUEL.replace("goal_line", "goalline"))
    with pytest.raises(ConfigError, match=r"sources\.race\.goalline.*did you mean 'goal_line'"):
        load(str(path))
    path.write_text(DUEL)
    with pytest.raises(ConfigError, match="goal_line: expected at most 20, got 21"):
        load(str(path), ["goal_line=21"])
    made = load(str(path), ["goal_line=9"]).composition
    assert made is not None
    assert made.sources["race"].config.goal_line == 9
    assert made.title == "ppo, dqn on DuelSource"
    assert cli.main(["config", "check", str(path)]) == 0


def test_settings_of_a_file_travel_where_nobody_has_imported_it(tmp_path: Path) -> None:
    (tmp_path / "far_source.py").write_text(HERE.read_text())
    text = POLE.replace(str(HERE), str(tmp_path / "far_source.py")).replace("Pole", "Duel")
    (tmp_path / "t.yaml").write_text(text)
    made = load(str(tmp_path / "t.yaml"), ["goal_line=9"]).composition
    assert made is not None
    (tmp_path / "packed").write_bytes(pickle.dumps(made.sources["source"].config))
    script = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb')).goal_line)"
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "packed"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(HERE.parent)},
        check=True,
    )
    assert done.stdout == "9\n"


def test_settings_of_the_short_form_are_overridden_by_either_name(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(POLE)
    for words in (
        ["num_envs=4", "epochs=3"],
        ["source.num_envs=4", "trainer.epochs=3"],
        ["sources.source.num_envs=4", "trainers.policy.epochs=3"],
    ):
        made = load(str(path), [*words, "algorithm=ppo", "model.hidden=[4]"]).composition
        assert made is not None
        assert made.sources["source"].config.num_envs == 4
        assert made.main.parts.trainer.epochs == 3
        assert made.main.parts.model.hidden == (4,)
    with pytest.raises(ConfigError, match="did you mean 'ppo'"):
        load(str(path), ["trainer.algorithm=ppp"])
