"""Policies that were trained together play on by themselves: each is found by its model's name."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from composed_runs import EXAMPLES, train
from race_game import DESCRIBED, SPACES

import bray_model
from bray.composition import match_casting
from bray.composition.loaded import player_of
from bray.policies.config import NetworkConfig
from bray.policies.networks import example_inputs, make_policy
from bray.templates.composition import AgentPart
from bray_core.errors import ClosedError, ConfigError

FEW = ("num_envs=2", "goal.evaluation_episodes=2", "goal.max_frames=128")
STEPS = ("trainers.hunter.steps_per_replay=64", "trainers.runner.steps_per_replay=64")
ALONE = """\
models: {hunter: {load: TRIAL}}
trainers: {runner: {algorithm: ppo, steps_per_replay: 64}}
sources:
  field:
    kind: agents
    environment: simple_tag_v3
    agents: {"adversary_*": hunter, "agent_*": runner}
"""
RACE = f"{Path(__file__).with_name('race_game.py')}:Race"
MATCHES = f"""\
algorithm: ppo
model: {{hidden: [8]}}
source:
  kind: matches
  environment: "{RACE}"
  num_envs: 2
trainer: {{steps_per_replay: 64, epochs: 1, minibatch_size: 32}}
"""


WIRE = f"""\
models:
  red: {{hidden: [8], spaces: {{observation: {{shape: [2]}}, action: {{discrete: 3}}}}}}
  blue: {{load: EXPORT}}
trainers: {{red: {{algorithm: ppo, steps_per_replay: 64, epochs: 1, minibatch_size: 32}}}}
sources:
  race:
    kind: agents
    command: >-
      {sys.executable} -m bray_actor.gamecores.multi_agent_gamecore --env {RACE}
      --address {{address}} --lanes 2
    lanes: 4
    agents: {{red: red, blue: blue}}
goal: {{agent: red, max_frames: 128}}
"""


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a policy that plays the race."""
    folder = tmp_path_factory.mktemp("before") / "models" / "blue" / "onnx" / "1"
    module = make_policy(SPACES, NetworkConfig(hidden=(8,)), 1)
    with bray_model.Model(module, example_inputs(SPACES, 0)) as model:
        model.export(folder, actor={"name": "policy", "config": {"spaces": DESCRIBED}})
    return folder


@pytest.mark.parametrize(
    "runtime",
    [
        "local",
        pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.long, pytest.mark.timeout(280)]),
    ],
)
def test_a_frozen_policy_plays_beside_who_learns_over_the_wire(
    runtime: str, export: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if runtime == "ray":
        request.getfixturevalue("ray_cluster")
    (tmp_path / "wire.yaml").write_text(WIRE.replace("EXPORT", str(export)))

    outcome = train(tmp_path / "wire.yaml", tmp_path / "wire", exports=False, runtime=runtime)

    assert outcome.frames >= 128
    # On Ray games go on while it is trained: how many steps more says nothing, and the newest
    # version may be on its way when the last of them is counted.
    assert outcome.version >= (2 if runtime == "local" else 1)
    if runtime == "local":
        assert outcome.frames < 192, "the frozen policy's steps do not count"
    assert [path.name for path in (tmp_path / "wire" / "models").iterdir()] == ["red"]


def test_a_frozen_policy_that_was_trained_on_something_else_is_refused(
    export: Path, tmp_path: Path
) -> None:
    text = WIRE.replace("EXPORT", f"{export}, spaces: {DESCRIBED}").replace("[2]", "[3]")
    (tmp_path / "other.yaml").write_text(text.replace("'shape': [3]", "'shape': [4]"))

    words = r"models\.blue\.load: expected a policy that sees and may do what sources\.race: blue"
    with pytest.raises(ConfigError, match=words):
        train(tmp_path / "other.yaml", tmp_path / "other", exports=False)


@pytest.mark.long
def test_a_runner_learns_from_hunters_that_learn_no_more(tmp_path: Path) -> None:
    train(EXAMPLES / "several" / "tag.yaml", tmp_path / "both", *FEW, *STEPS)
    (tmp_path / "alone.yaml").write_text(ALONE.replace("TRIAL", str(tmp_path / "both")))

    outcome = train(tmp_path / "alone.yaml", tmp_path / "alone", *FEW)

    assert outcome.version >= 2
    assert outcome.frames in range(128, 192), "hunters' steps do not count"
    hunter = AgentPart(name="hunter", model="hunter", load=str(tmp_path / "both"))
    manifest = json.loads((Path(player_of(hunter)) / "manifest.json").read_text())
    assert Path(player_of(hunter)).parents[1].name == "hunter"
    assert manifest["actor"]["config"]["spaces"]["observation"]["shape"] == [16]
    other = AgentPart(name="wolf", model="wolf", load=str(tmp_path / "both"))
    with pytest.raises(ConfigError, match=r"models\.wolf\.load: .* expected one of hunter, runner"):
        player_of(other)


@pytest.mark.long
def test_an_opponent_is_loaded_once_for_all_evaluations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "first.yaml").write_text(MATCHES + "goal: {max_frames: 64}")
    train(tmp_path / "first.yaml", tmp_path / "first", "goal.evaluation_episodes=2")
    goal = f"{{max_frames: 640, evaluation_episodes: 2, win_rate: 1.0, against: {tmp_path}/first}}"
    (tmp_path / "next.yaml").write_text(MATCHES + f"goal: {goal}")
    loaded: list[Any] = []
    played: list[Any] = []
    model, evaluate = bray_model.Model, match_casting.evaluate_match
    monkeypatch.setattr(
        bray_model, "Model", lambda *a, **o: loaded.append(model(*a, **o)) or loaded[-1]
    )
    monkeypatch.setattr(
        match_casting, "evaluate_match", lambda *a, **o: played.append(evaluate(*a, **o)) or [0.0]
    )

    train(tmp_path / "next.yaml", tmp_path / "next", exports=False)

    assert len(played) > 1
    (opponent,) = [one for one in loaded if one.name == "first"]
    with pytest.raises(ClosedError):
        opponent({"observation": np.zeros(2, np.float32)})
