"""MAPPO's and QMIX's teams beside policies of other kinds, in one environment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_composition_runs import run_of

from bray.algorithms.mappo import MAPPO
from bray.templates import loading
from bray.training.team_policy import TeamShape
from bray_core.errors import ConfigError, SettingsError
from bray_core.spaces import Spaces

pytestmark = pytest.mark.usefixtures("evaluated_here")

HUNT = """
models: {hunters: {hidden: [8]}, prey: {hidden: [8]}}
trainers:
  hunters: {algorithm: mappo, steps_per_replay: 20, epochs: 2}
  prey: {algorithm: ppo, steps_per_replay: 32, epochs: 2, minibatch_size: 32}
sources:
  field:
    kind: agents
    environment: simple_tag_v3
    num_envs: 2
    agents: {"adversary_*": hunters, "agent_*": prey}
goal: {agent: hunters, max_frames: 400, evaluation_episodes: 2}
"""
MIXED = HUNT.replace(
    "mappo, steps_per_replay: 20, epochs: 2",
    "qmix, batch_size: 16, steps_per_collect: 8, replays_per_collect: 2",
).replace("sources:", "buffers: {hunters: {warmup_frames: 40}}\nsources:")


def manifest(found: dict[str, Any], model: str) -> Any:
    """Return what an export says of its actor."""
    (path,) = (found["path"] / "models" / model / "onnx").glob("*/manifest.json")
    return json.loads(path.read_text())["actor"]["config"]


def test_a_mappo_team_learns_beside_ppo_and_a_seed_repeats(tmp_path: Path) -> None:
    first = run_of(tmp_path, HUNT, trial="first")
    again = run_of(tmp_path, HUNT, trial="again", exports=False)

    assert first["weights"] == again["weights"]
    for name in ("hunters", "prey"):
        assert first["weights"][name][0] > 1
        assert f"trainer/loss{{trainer={name}}}" in first["metrics"]
    assert first["outcome"].episode_returns
    config = manifest(first, "hunters")
    assert config["agents"] == ["adversary_*"]
    assert config["spaces"]["observation"]["agent"] == {"discrete": 3}
    assert config["spaces"]["observation"]["own"] == {"shape": [16]}
    assert config["spaces"]["observation"]["state"] == {"shape": [62]}, "the environment's own"


def test_a_qmix_team_learns_beside_ppo_and_a_seed_repeats(tmp_path: Path) -> None:
    first = run_of(tmp_path, MIXED, trial="first")
    again = run_of(tmp_path, MIXED, trial="again", exports=False)

    assert first["weights"] == again["weights"]
    for name in ("hunters", "prey"):
        assert first["weights"][name][0] > 1
    config = manifest(first, "hunters")
    assert config["spaces"]["action"] == {"multi_discrete": [5, 5, 5]}
    assert config["spaces"]["observation"]["agents"] == {"shape": [3, 16]}


def test_both_kinds_of_teams_go_on_from_their_checkpoints(tmp_path: Path) -> None:
    text = MIXED.replace(
        "prey: {algorithm: ppo, steps_per_replay: 32, epochs: 2, ", "prey: {"
    ).replace("minibatch_size: 32", "algorithm: mappo, steps_per_replay: 20, epochs: 2")
    before = run_of(tmp_path, text, exports=False)
    after = run_of(tmp_path, text, "goal.max_frames=800", exports=False)
    for name, (version, _) in after["weights"].items():
        assert version > before["weights"][name][0] > 1


@pytest.mark.parametrize("text", [HUNT, MIXED])
def test_a_team_that_was_trained_before_plays_on_as_a_team(text: str, tmp_path: Path) -> None:
    before = run_of(tmp_path, text, trial="before")
    frozen = f"""
models: {{prey: {{hidden: [8]}}, hunters: {{load: "{before["path"]}"}}}}
trainers: {{prey: {{algorithm: ppo, steps_per_replay: 32, minibatch_size: 32}}}}
sources:
  field:
    kind: agents
    environment: simple_tag_v3
    num_envs: 2
    agents: {{"adversary_*": hunters, "agent_*": prey}}
goal: {{agent: prey, max_frames: 100, evaluation_episodes: 2}}
"""
    assert run_of(tmp_path, frozen, exports=False)["weights"]["prey"][0] > 1


@pytest.mark.ray
@pytest.mark.timeout(280)
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("text", [HUNT, pytest.param(MIXED, marks=pytest.mark.long)])
def test_a_team_on_ray_learns_beside_ppo(text: str, tmp_path: Path) -> None:
    found = run_of(tmp_path, text, "goal.max_frames=1500", exports=False, runtime="ray")
    assert {name for name, (version, _) in found["weights"].items() if version > 1} == {
        "hunters",
        "prey",
    }


@pytest.mark.parametrize(
    ("was", "now", "words"),
    [
        ("kind: agents", "kind: matches", r"field\.kind: expected kind agents .* got kind matches"),
        (
            "environment: simple_tag_v3",
            "command: ./game",
            r"field\.command: expected kind agents with an `environment` for MAPPO .*, got command",
        ),
    ],
)
def test_sources_that_do_not_tell_a_team_are_refused(was: str, now: str, words: str) -> None:
    assert was in HUNT
    with pytest.raises(SettingsError, match=words):
        loading.parse(HUNT.replace(was, now), "f")


@pytest.mark.parametrize(
    ("was", "now", "words"),
    [
        (
            '"adversary_*": hunters, "agent_*": prey',
            '"*_0": hunters, "*": prey',
            r"template\.yaml:\d+:\d+: sources\.field\.environment: expected a team whose agents",
        ),
        (
            'simple_tag_v3\n    num_envs: 2\n    agents: {"adversary_*": hunters, "agent_*": prey}',
            'connect_four_v3\n    agents: {"player_0": hunters, "*": prey}',
            r"sources\.field\.environment: connect_four_v3: .* got agents that take turns",
        ),
        (
            "num_envs: 2",
            "kwargs: {continuous_actions: true}",
            r"trainers\.hunters: .*expected one choice \(Discrete\) of each agent for MAPPO",
        ),
    ],
)
def test_environments_that_have_no_such_team_are_refused(
    was: str, now: str, words: str, tmp_path: Path
) -> None:
    assert was in HUNT
    with pytest.raises(ConfigError, match=words):
        run_of(tmp_path, HUNT.replace(was, now))


def test_a_team_has_the_sizes_of_its_rows() -> None:
    real = {"shape": [4]}
    member = {"agent": {"discrete": 3}, "own": real, "state": {"shape": [9]}}
    whole = {"agents": {"shape": [3, 4]}, "state": {"shape": [9]}}
    of_member = Spaces.parse("it", {"observation": member, "action": {"discrete": 5}})
    of_whole = Spaces.parse("it", {"observation": whole, "action": {"multi_discrete": [5] * 3}})

    wanted = TeamShape(num_agents=3, observation_size=4, state_size=9, num_actions=5)
    assert TeamShape.of(of_member) == TeamShape.of(of_whole) == wanted


def test_a_replay_of_mappo_has_the_steps_of_all_members(tmp_path: Path) -> None:
    composition = loading.parse(HUNT, "f").composition
    assert composition is not None
    algorithm = composition.learners["hunters"].make()
    assert isinstance(algorithm, MAPPO)
    member = {"agent": {"discrete": 3}, "own": {"shape": [4]}, "state": {"shape": [9]}}
    spaces = Spaces.parse("it", {"observation": member, "action": {"discrete": 5}})

    class Local:
        is_local = True

    run: Any = Local()
    settled = algorithm.settled(run, spaces)
    assert settled.buffer(is_local=True).batch_steps == 2 * 3 * 20, "environments, agents, steps"
