"""Compositions really run: several policies, matches, mixtures, in one process."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from composed_runs import train

import bray
from bray.composition.exports import export_all
from bray.composition.train import train_composition
from bray.templates.loading import load, parse
from bray_buffer.shared_out import SharedOut
from bray_core.errors import ConfigError, SettingsError

pytestmark = pytest.mark.usefixtures("evaluated_here")

RACE = f"{Path(__file__).with_name('race_game.py')}:Race"
TWO = f"""
models: {{red: {{hidden: [8]}}, blue: {{hidden: [8]}}}}
trainers:
  red: {{algorithm: ppo, steps_per_replay: 64, epochs: 2, minibatch_size: 32}}
  blue: {{algorithm: dqn, batch_size: 16, steps_per_collect: 8, replays_per_collect: 2}}
buffers: {{blue: {{warmup_frames: 40}}}}
agents: {{red: {{}}, blue: {{}}}}
sources:
  race: {{kind: agents, environment: "{RACE}", num_envs: 2, agents: {{red: red, blue: blue}}}}
goal: {{agent: red, max_frames: 400, evaluation_episodes: 2}}
"""
MATCHES = f"""
algorithm: ppo
model: {{hidden: [8]}}
source:
  kind: matches
  environment: "{RACE}"
  num_envs: 2
  opponents: {{rule: past, freeze_every: 100}}
trainer: {{steps_per_replay: 64, epochs: 2, minibatch_size: 32}}
goal: {{max_frames: 400, evaluation_episodes: 4}}
"""
MIXED = """
models: {policy: {hidden: [8]}}
buffers:
  near: &replay {kind: replay, capacity: 1000, batch_size: 16, min_size: 40, unit: transition}
  far: *replay
  both: {kind: mixture, of: {near: 0.3, far: 0.7}}
trainers: {policy: {algorithm: dqn, steps_per_collect: 8, inputs: {experience: both}}}
agents: {near: {model: policy, buffer: near}, far: {model: policy, buffer: far}}
sources:
  short: {kind: environments, environment: CartPole-v1, num_envs: 2, agents: {"*": near}}
  long: {kind: environments, environment: CartPole-v1, num_envs: 2, agents: {"*": far}}
goal: {agent: near, max_frames: 300, evaluation_episodes: 2}
"""


PPO_MIXED = """
models: {policy: {hidden: [8]}}
buffers: {one: {}, two: {}, both: {kind: mixture, of: {one: 1, two: 1}}}
trainers: {policy: {algorithm: ppo, inputs: {experience: both}}}
agents: {one: {model: policy, buffer: one}, two: {model: policy, buffer: two}}
sources:
  first: {environment: CartPole-v1, num_envs: 2, agents: {"*": one}}
  second: {environment: CartPole-v1, num_envs: 2, agents: {"*": two}}
goal: {agent: one, max_frames: 300}
"""
MIXED_GAMES = f"""
models: {{policy: {{hidden: [8]}}}}
buffers:
  near: &replay {{kind: replay, capacity: 1000, batch_size: 16, min_size: 40, unit: transition}}
  far: *replay
  both: {{kind: mixture, of: {{near: 0.3, far: 0.7}}}}
trainers: {{policy: {{algorithm: dqn, steps_per_collect: 8, inputs: {{experience: both}}}}}}
agents: {{near: {{model: policy, buffer: near}}, far: {{model: policy, buffer: far}}}}
sources:
  short: {{kind: agents, environment: "{RACE}", num_envs: 2, agents: {{"*": near}}}}
  long: {{kind: agents, environment: "{RACE}", num_envs: 2, agents: {{"*": far}}}}
goal: {{agent: near, max_frames: 300, evaluation_episodes: 2}}
"""


def run_of(
    folder: Path,
    text: str,
    *overrides: str,
    trial: str = "trial",
    exports: bool = True,
    runtime: Literal["local", "ray"] = "local",
) -> dict[str, Any]:
    """Train a template; return digests of the weights, and what else there is to compare."""
    path = folder / "template.yaml"
    path.write_text(text)
    composition = load(str(path), overrides).composition
    assert composition is not None
    goal = composition.goal.completed(reward_threshold=None, max_frames=400)
    with bray.init(folder, trial, runtime, config=composition.to_mapping()) as run:
        outcome = train_composition(run, composition, goal)
        if exports:  # which takes a second of a core for each model
            export_all(run, composition)
        digests = {name: _digest(model) for name, model in run.models.items()}
        metrics = run.metrics()
    return {"outcome": outcome, "weights": digests, "metrics": metrics, "path": folder / trial}


def _digest(model: Any) -> tuple[int, str]:
    version, weights = model.weights()
    found = hashlib.sha256()
    for name in sorted(weights):
        found.update(np.ascontiguousarray(weights[name]).tobytes())
    return version, found.hexdigest()


def test_two_policies_learn_in_one_environment_and_a_seed_repeats(tmp_path: Path) -> None:
    first = run_of(tmp_path, TWO, trial="first")
    again = run_of(tmp_path, TWO, trial="again", exports=False)
    other = run_of(tmp_path, TWO, "seed=2", trial="other", exports=False)

    assert first["weights"] == again["weights"] != other["weights"]
    assert {name: version > 1 for name, (version, _) in first["weights"].items()} == {
        "red": True,
        "blue": True,
    }
    assert first["outcome"].frames >= 400
    for name in ("red", "blue"):
        assert f"trainer/loss{{trainer={name}}}" in first["metrics"]
        manifests = list((first["path"] / "models" / name / "onnx").glob("*/manifest.json"))
        assert json.loads(manifests[0].read_text())["actor"]["config"]["agents"] == [name]


def test_a_trial_of_several_goes_on_from_its_checkpoints(tmp_path: Path) -> None:
    before = run_of(tmp_path, TWO, exports=False)
    after = run_of(tmp_path, TWO, "goal.max_frames=800", exports=False)

    assert after["outcome"].frames >= 800
    for name, (version, _) in after["weights"].items():
        assert version > before["weights"][name][0]


def test_matches_freeze_versions_and_measure_a_win_rate(tmp_path: Path) -> None:
    found = run_of(tmp_path, MATCHES)

    league = json.loads((found["path"] / "league.json").read_text())
    assert league["versions"]
    assert 0.0 <= found["outcome"].evaluation_return <= 1.0
    assert set(found["outcome"].episode_returns) <= {0.0, 0.5, 1.0}


def test_a_trainer_draws_from_a_mixture_of_what_two_sources_play(tmp_path: Path) -> None:
    found = run_of(tmp_path, MIXED)

    assert found["weights"]["policy"][0] > 1


def test_a_mixture_of_replays_may_be_drawn_from_by_priority(tmp_path: Path) -> None:
    own = MIXED.replace("kind: replay, ", "").replace(", batch_size: 16, min_size: 40, unit", "#")
    own = re.sub(r"#: transition", ", warmup_frames: 40, prioritized: true", own)
    assert run_of(tmp_path, own, exports=False)["weights"]["policy"][0] > 1
    far = "{kind: replay, capacity: 99, batch_size: 16, unit: transition, sampler: prioritized}"
    both = MIXED.replace("*replay", far)
    with pytest.raises(ConfigError, match=r"buffers\.far: expected a replay that draws like.*near"):
        run_of(tmp_path, both, trial="both")
    of_sac = MIXED.replace("min_size: 40", "min_size: 40, sampler: prioritized")
    of_sac = of_sac.replace("algorithm: dqn", "algorithm: sac")
    with pytest.raises(ConfigError, match="draws by priority, which SAC does not set"):
        run_of(tmp_path, of_sac, trial="sac")
    alone = """
models: {policy: {hidden: [8]}}
buffers: {near: {kind: replay, capacity: 1000, batch_size: 16, min_size: 40, sampler: prioritized}}
trainers: {policy: {algorithm: sac, inputs: {experience: near}}}
agents: {near: {model: policy, buffer: near}}
sources: {short: {kind: environments, environment: CartPole-v1, agents: {"*": near}}}
goal: {agent: near, max_frames: 300}
"""
    with pytest.raises(ConfigError, match=r"yaml:4:37: trainers\.policy\..*by priority, which SAC"):
        run_of(tmp_path, alone, trial="alone")


SHARED = MIXED.replace(
    "agents: {near: {model: policy, buffer: near}, far: {model: policy, buffer: far}}",
    "agents: {near: {model: policy, buffer: {near: 3, far: 1}}}",
).replace('"*": far', '"*": near')


SHARED_GAMES = MIXED_GAMES.replace(
    "buffer: near}, far: {model: policy, buffer: far}}", "buffer: {near: 3, far: 1}}}"
).replace('"*": far', '"*": near')


def test_what_an_agent_records_may_be_shared_out_to_replays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Mapping[str, Any]] = []

    def shared_out(buffers: Mapping[str, Any]) -> SharedOut:
        given.append({name: buffer for name, (buffer, _) in buffers.items()})
        return SharedOut(buffers)

    monkeypatch.setattr("bray.composition.source_maker.SharedOut", shared_out)
    found = run_of(tmp_path, SHARED, exports=False)

    assert found["weights"]["policy"][0] > 1
    near, far = (given[0][name].stats()["queued"] for name in ("near", "far"))
    assert near + far >= 300
    assert 2 < near / far < 4
    again = run_of(tmp_path, SHARED, exports=False, trial="again")
    assert again["weights"] == found["weights"], "a seed repeats"
    games = MIXED_GAMES.replace("buffer: near}", "buffer: {near: 1, far: 1}}")
    assert run_of(tmp_path, games, exports=False, trial="games")["weights"]["policy"][0] > 1


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.timeout(280)
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("text", [SHARED, SHARED_GAMES], ids=["environments", "games"])
def test_workers_on_ray_share_what_they_record_out_to_replays(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Mapping[str, Any]] = []

    def shared_out(buffers: Mapping[str, Any]) -> SharedOut:
        given.append({name: buffer for name, (buffer, _) in buffers.items()})
        return SharedOut(buffers)

    monkeypatch.setattr("bray.composition.source_maker.SharedOut", shared_out)
    pushed: dict[str, int] = {}

    def look(run: bray.Run) -> None:
        pushed.update({name: int(one.stats()["pushed"]) for name, one in given[0].items()})

    (tmp_path / "shared.yaml").write_text(text + "actors: {short: {num_workers: 2}}\n")
    found = train(
        tmp_path / "shared.yaml",
        tmp_path / "shared",
        "goal.max_frames=6000",
        exports=False,
        look=look,
        runtime="ray",
    )
    assert found.version > 1
    # Each worker shares out segments of its own, 3 : 1 but for the last few.
    assert 2.5 < pushed["near"] / pushed["far"] < 3.5
    assert min(pushed.values()) > 50


@pytest.mark.parametrize(
    ("was", "now", "words"),
    [
        (
            "{near: 3, far: 1}",
            "{near: 3, fra: 1}",
            r"near\.buffer: expected .* 'fra', did you mean",
        ),
        ("{near: 3, far: 1}", "{near: 3, far: 0}", r"buffer\.far: expected a share above 0, got 0"),
        ("{near: 3, far: 1}", "{near: 3, both: 1}", "got 'both', a mixture: nobody pushes into it"),
        (
            "inputs: {experience: both}",
            "inputs: {experience: near}",
            r"buffer\.far: expected a replay of a mixture that trainers\.policy draws from, got",
        ),
    ],
)
def test_shares_of_what_is_no_replay_of_the_mixture_are_refused(
    was: str, now: str, words: str
) -> None:
    assert was in SHARED
    with pytest.raises(SettingsError, match=words):
        parse(SHARED.replace(was, now), "f")


def test_agents_of_games_record_into_the_replays_of_a_mixture(tmp_path: Path) -> None:
    found = run_of(tmp_path, MIXED_GAMES, exports=False)

    assert found["weights"]["policy"][0] > 1
    buffers = found["path"] / "buffers"
    assert {path.name for path in buffers.iterdir() if any(path.iterdir())} == {"near", "far"}
    both = MIXED_GAMES.replace('{"*": far}', "{red: far, blue: near}")
    with pytest.raises(ConfigError, match=r"agents\.near\.buffer: expected that of the other"):
        run_of(tmp_path, both, trial="both")
    with pytest.raises(ConfigError, match="PPO, which trains on each step once"):
        run_of(tmp_path, PPO_MIXED, trial="ppo")


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.timeout(280)
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("text", [MIXED, MIXED_GAMES], ids=["environments", "games"])
def test_a_trainer_on_ray_draws_from_a_mixture(text: str, tmp_path: Path) -> None:
    """It trains as often as the same run in one process, and no more: 2 batches for each step."""
    paced = text.replace("steps_per_collect: 8", "steps_per_collect: 8, replays_per_collect: 4")
    # What plays does not wait for the trainer's process to begin: there is time for both.
    found = run_of(tmp_path, paced, "goal.max_frames=8000", exports=False, runtime="ray")

    frames, replays = found["outcome"].frames, found["weights"]["policy"][0] - 1
    assert 0 < replays <= 4 * (frames + 200) / 16 + 2


def test_what_plays_by_itself_does_not_learn_beside_others(tmp_path: Path) -> None:
    text = TWO.replace(
        "algorithm: dqn, batch_size: 16, steps_per_collect: 8, replays_per_collect: 2",
        "algorithm: es",
    )
    with pytest.raises(ConfigError, match=r"trainers\.blue.*does not learn side by side"):
        run_of(tmp_path, text.replace("buffers: {blue: {warmup_frames: 40}}", ""))


def test_what_a_run_refuses_has_its_line(tmp_path: Path) -> None:
    text = """
trainers:
  a: {algorithm: ppo}
sources:
  pole: {environment: CartPole-v1}
  car: {environment: MountainCar-v0}
goal: {max_frames: 100}
"""
    with pytest.raises(ConfigError, match=r"template\.yaml:3:3: trainers\.a: .* car: \* differs"):
        run_of(tmp_path, text)
    unknown = text.replace("MountainCar-v0", "CartPoll-v1")
    words = r"template\.yaml:6:9: sources\.car\.environment: unknown 'CartPoll-v1', did you mean"
    with pytest.raises(ConfigError, match=words):
        run_of(tmp_path, unknown, trial="other")


def test_agents_that_differ_need_models_of_their_own(tmp_path: Path) -> None:
    text = TWO.replace("agents: {{red: red, blue: blue}}", "").replace(RACE, "simple_tag_v3")
    with pytest.raises(
        ConfigError, match=r"sources\.race\.agents\.red: expected the name.*adversary_0"
    ):
        run_of(tmp_path, text)
    shared = """
algorithm: ppo
source: {kind: agents, environment: simple_tag_v3, num_envs: 2}
goal: {max_frames: 100}
"""
    with pytest.raises(ConfigError, match="give each kind a model of its own"):
        run_of(tmp_path, shared)


WIRE = f"""
models:
  red: {{hidden: [8], spaces: &seen {{observation: {{shape: [2]}}, action: {{discrete: 3}}}}}}
trainers: {{red: {{algorithm: ppo, steps_per_replay: 64, epochs: 1, minibatch_size: 32}}}}
agents: {{red: {{}}, other: {{play: random, spaces: *seen}}}}
sources:
  race:
    kind: agents
    command: >-
      {sys.executable} -m bray_actor.gamecores.multi_agent_gamecore --env {RACE}
      --address {{address}} --lanes 2
    lanes: 4
    agents: {{red: red, blue: other}}
goal: {{agent: red, max_frames: 128}}
"""


def test_a_script_plays_beside_who_learns_over_the_wire(tmp_path: Path) -> None:
    found = run_of(tmp_path, WIRE, exports=False)

    assert found["outcome"].frames == 128, "the steps of chance do not count"
    assert list(found["weights"]) == ["red"]
    assert found["weights"]["red"][0] >= 2


def test_what_frozen_agents_cannot_play_over_the_wire_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"at the agent of a script, got none for 'other'"):
        run_of(tmp_path, WIRE.replace(", spaces: *seen", ""))
    with pytest.raises(ConfigError, match=r"no_such_game.py:strike: expected module:function or"):
        run_of(tmp_path, WIRE.replace("play: random", "play: no_such_game.py:strike"))
