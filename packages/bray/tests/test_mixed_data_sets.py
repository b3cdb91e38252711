"""Data sets where replays may stand: in mixtures, as a beginning, and beside other policies."""

from __future__ import annotations

import os
import pickle
import re
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_composition_runs import RACE, run_of
from test_data_sets import GAMMA, SPACES, Right, seen, table, write

from bray.sources import demonstrations
from bray.sources.data_set_replay import DataSetPlace, DataSetReplay
from bray.sources.replay_beginning import ReplayBeginning
from bray.templates import loading
from bray_actor import segment_spec
from bray_buffer import ReplayBuffer, ReplayConfig
from bray_buffer.mixture import Mixture
from bray_core.action_vector import step_specs
from bray_core.errors import ConfigError, SettingsError
from bray_core.layout import Layout

pytestmark = pytest.mark.usefixtures("evaluated_here")

RACES = RACE.replace(":Race", ":races")
LAYOUT = Layout(segment_spec(*step_specs(SPACES), 2))
REPLAY = ReplayConfig(
    unit="transition", batch_size=8, capacity=32, min_size=1, gamma=GAMMA, n_step=2
)
MIXED = """
models: {{policy: {{hidden: [8]}}}}
buffers:
  played: {{capacity: 500, warmup_frames: 40}}
  expert: {{kind: dataset, from: {origin}, path: "{path}"}}
  both: {{kind: mixture, of: {{played: 1, expert: 1}}}}
trainers: {{policy: {{algorithm: {algorithm}, batch_size: 16, steps_per_collect: 8,
  replays_per_collect: 2, inputs: {{experience: both}}}}}}
sources: {{pole: {{environment: {task}, num_envs: 2}}}}
goal: {{max_frames: 300, evaluation_episodes: 1}}
"""


def three_steps() -> list[dict[str, Any]]:
    """Return an episode of the steps that `write` records."""
    observation = np.stack([seen(at) for at in range(4)])
    reward = [1.0, 2.0, 3.0]
    return [{"observation": observation, "action": [1, 1, 1], "reward": reward, "terminated": True}]


def recorded(folder: Path) -> dict[str, str]:
    """Return the same three steps as a recording, as a table and as Python's objects."""
    write(folder / "shown", {"terminated": True, "observation": seen(3)})
    (folder / "tables").mkdir()
    table(folder / "tables" / "a.parquet")
    return {
        "recordings": str(folder / "shown"),
        "parquet": str(folder / "tables"),
        "objects": f"{__name__}:three_steps",
    }


def test_a_data_set_gives_the_transitions_that_a_replay_of_it_would(tmp_path: Path) -> None:
    """Of two steps, so that what follows what is the data set's own."""
    for origin, where in recorded(tmp_path).items():
        scheme = "objects:" if origin == "objects" else ""
        place = DataSetPlace(where=scheme + where, batch_size=64)
        made = DataSetReplay(place, SPACES, LAYOUT, REPLAY, GAMMA)
        batch = pickle.loads(pickle.dumps(made)).pop().tree
        assert len(batch["reward"]) == 64
        first = batch["observation"][:, 0] == 0
        assert batch["reward"][first] == pytest.approx(1 + GAMMA * 2), origin
        assert (batch["next_observation"][first, 0] == 2).all()
        assert (batch["discount"][batch["observation"][:, 0] == 2] == 0).all()
        with pytest.raises(ConfigError, match="read only"):
            made.push()


def test_a_mixture_keeps_the_pace_of_what_is_played_whatever_its_data_set_holds(
    tmp_path: Path,
) -> None:
    where = recorded(tmp_path)["recordings"]
    replay = ReplayBuffer(LAYOUT, REPLAY)
    part = DataSetReplay(DataSetPlace(where=where), SPACES, LAYOUT, REPLAY, GAMMA)
    begin = ReplayBeginning(where, SPACES, GAMMA)
    assert (begin(replay), begin(replay)) == (3, 0)
    mixture = Mixture({"played": (replay, 1), "expert": (part, 1)}, 1, samples_per_insert=8)
    mixture.pop()
    with pytest.raises(TimeoutError, match="too little was pushed"):
        mixture.pop(0.01)
    state = mixture.state_dict()
    mixture.load_state_dict(state)
    mixture.close()


def test_a_replay_that_begins_with_a_data_set_stands_at_its_rate(tmp_path: Path) -> None:
    config = ReplayConfig(
        unit="transition",
        batch_size=2,
        capacity=32,
        min_size=1,
        samples_per_insert=2.0,
        error_margin=2.0,
    )
    replay = ReplayBuffer(LAYOUT, config)
    begin = ReplayBeginning(recorded(tmp_path)["recordings"], SPACES, GAMMA)
    assert begin(replay) == 3
    replay.pop(0.0)
    with pytest.raises(TimeoutError, match="samples_per_insert"):
        replay.pop(0.0)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four episodes of CartPole."""
    folder = tmp_path_factory.mktemp("shown")
    demonstrations.record(folder, "CartPole-v1", Right(), episodes=4, seed=1)
    return folder


@pytest.mark.parametrize("algorithm", ["dqn", "sac"])
def test_a_trainer_draws_from_what_it_plays_and_from_a_data_set(
    algorithm: str, shown: Path, tmp_path: Path
) -> None:
    text = MIXED.format(origin="recordings", path=shown, algorithm=algorithm, task="CartPole-v1")
    found = run_of(tmp_path, text, exports=False)
    again = run_of(tmp_path, text, trial="again", exports=False)
    assert found["weights"]["policy"][0] > 1
    assert found["weights"] == again["weights"], "a seed repeats"
    steps = "buffer/stored_steps"
    assert any(name.startswith(steps) for name in found["metrics"])


def test_a_data_set_is_drawn_by_priority_as_the_replay_beside_it(
    shown: Path, tmp_path: Path
) -> None:
    text = MIXED.format(origin="recordings", path=shown, algorithm="dqn", task="CartPole-v1")
    text = text.replace("capacity: 500,", "capacity: 500, prioritized: true,")
    found = run_of(tmp_path, text, exports=False)
    assert found["weights"]["policy"][0] > 1


REFUSED = {
    "nobody plays": (
        "of: {played: 1, expert: 1}",
        "of: {expert: 1}",
        r"inputs\.experience: expected a buffer that is played into, got 'both'.*iql",
    ),
    "a queue": (
        "played: {capacity: 500, warmup_frames: 40}",
        "played: {kind: queue, batch_size: 4}",
        r"buffers\.played\.kind: expected replay for DQN \(trainers\.policy\), got queue",
    ),
    "a memory": (
        "hidden: [8]",
        "hidden: [8], memory_size: 4",
        r"memory_size: expected 0 with the data set buffers\.expert",
    ),
    "no such folder": ("shown", "shwn", r"expected a folder of \*\.episode files"),
    "no function": (
        "from: recordings",
        "from: objects",
        r"path: expected module:function or file\.py:function, got",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_mixed_is_refused(case: str, shown: Path, tmp_path: Path) -> None:
    was, now, words = REFUSED[case]
    text = MIXED.format(origin="recordings", path=shown, algorithm="dqn", task="CartPole-v1")
    assert was in text
    with pytest.raises(ConfigError, match=words):
        run_of(tmp_path, text.replace(was, now), exports=False)


def test_demonstrations_are_data_sets_alone() -> None:
    text = """
buffers: {expert: {}}
trainers: {a: {algorithm: rl_imitation, inputs: {demonstrations: expert}}}
agents: {a: {buffer: expert}}
sources: {pole: {environment: CartPole-v1}}
"""
    with pytest.raises(SettingsError, match="expected a data set, or a mixture of data sets"):
        loading.parse(text, "f")


IMITATING = f"""
models: {{red: {{hidden: [8]}}, blue: {{hidden: [8]}}}}
buffers:
  good: {{kind: dataset, from: objects, path: "{RACES}"}}
  fair: {{kind: dataset, from: objects, path: "{RACES}"}}
  shown: {{kind: mixture, of: {{good: 0.7, fair: 0.3}}}}
  blue: {{warmup_frames: 40}}
trainers:
  red: {{algorithm: rl_imitation, steps_per_replay: 64, epochs: 1, minibatch_size: 32,
    cloning_steps: 5, imitation_weight: {{start: 0.5, end: 0.1, frames: 128}},
    inputs: {{demonstrations: shown}}}}
  blue: {{algorithm: dqn, batch_size: 16, steps_per_collect: 8, replays_per_collect: 2}}
sources:
  race: {{kind: agents, environment: "{RACE}", num_envs: 2, agents: {{red: red, blue: blue}}}}
goal: {{agent: red, max_frames: 400, evaluation_episodes: 2}}
"""


def test_a_policy_imitates_beside_one_that_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a schedule of its frames, from two data sets, in the same games."""
    from bray_algo.losses import imitation

    weights: list[float] = []
    mixed = imitation.mixed_loss

    def noted(*terms: Any, imitation_weight: float) -> Any:
        weights.append(imitation_weight)
        return mixed(*terms, imitation_weight=imitation_weight)

    monkeypatch.setattr(imitation, "mixed_loss", noted)
    found = run_of(tmp_path, IMITATING, exports=False)
    assert {name: version > 1 for name, (version, _) in found["weights"].items()} == {
        "red": True,
        "blue": True,
    }
    assert weights[0] == pytest.approx(0.5 - 0.4 * 64 / 128)
    assert weights[-1] == pytest.approx(0.1)


def test_who_imitates_in_games_needs_a_data_set(tmp_path: Path) -> None:
    text = IMITATING.replace("inputs: {demonstrations: shown}", "")
    with pytest.raises(SettingsError, match=r"inputs: expected the buffer of a data set") as caught:
        loading.parse(text.split("buffers:")[0] + "trainers:" + text.split("trainers:")[1], "f")
    assert caught.value.problems[0].key == "trainers.red.inputs"


CLONE = f"""
models: {{red: {{hidden: [8]}}, clone: {{hidden: [8]}}}}
buffers: {{shown: {{kind: dataset, from: objects, path: "{RACES}"}}}}
trainers:
  red: {{algorithm: ppo, steps_per_replay: 64, epochs: 1, minibatch_size: 32}}
  clone: {{algorithm: bc, max_steps: 25, evaluate_every: 10, batch_size: 8,
    inputs: {{demonstrations: shown}}}}
sources:
  race: {{kind: agents, environment: "{RACE}", num_envs: 2, agents: {{red: red, blue: clone}}}}
goal: {{agent: red, max_frames: 256, evaluation_episodes: 2}}
"""


def test_a_clone_learns_from_its_data_set_beside_one_who_plays(tmp_path: Path) -> None:
    """It plays, is exported and resumed like the other, and records nothing; it stops learning."""
    found = run_of(tmp_path, CLONE)
    checkpoints = found["path"] / "checkpoints" / "clone"
    assert checkpoints.is_dir()
    assert found["weights"]["clone"][0] == 3, "a version after each 10 of 25 steps"
    assert found["outcome"].frames >= 256
    assert list((found["path"] / "models" / "clone" / "onnx").glob("*/manifest.json"))
    again = run_of(tmp_path, CLONE, "goal.max_frames=320", exports=False)
    assert again["weights"]["clone"][1] == found["weights"]["clone"][1], "it has learnt all"
    goal = CLONE.replace("agent: red, max", "agent: clone, max")
    assert run_of(tmp_path, goal, trial="main", exports=False)["outcome"].episode_returns


@pytest.mark.parametrize(
    ("was", "now", "words"),
    [
        (
            "kind: agents",
            "kind: matches",
            r"race: expected kind agents, .* got kind matches",
        ),
        ("red: red, blue: clone", "'*': clone", r"sources\.race: expected kind agents, with anoth"),
        ("algorithm: bc, max_steps: 25", "algorithm: es", r"is played by other weights"),
        ("algorithm: bc, max_steps: 25", "algorithm: alphazero", r"by a search through the game"),
    ],
)
def test_what_cannot_learn_beside_others_says_why(was: str, now: str, words: str) -> None:
    assert was in CLONE
    with pytest.raises(SettingsError, match=words):
        loading.parse(CLONE.replace(was, now), "f")


def test_a_clone_needs_a_data_set() -> None:
    text = re.sub(r"buffers: .*\n", "", CLONE).replace("inputs: {demonstrations: shown}", "")
    with pytest.raises(SettingsError, match=r"trainers\.clone\.inputs: expected the buffer of a"):
        loading.parse(text, "f")


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.timeout(280)
@pytest.mark.usefixtures("ray_cluster")
def test_a_clone_on_ray_learns_beside_one_who_plays(tmp_path: Path) -> None:
    found = run_of(tmp_path, CLONE, exports=False, runtime="ray")
    assert found["weights"]["clone"][0] >= 2
    assert found["weights"]["red"][0] > 1


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.timeout(280)
@pytest.mark.usefixtures("ray_cluster")
def test_a_trainer_on_ray_draws_from_a_data_set(shown: Path, tmp_path: Path) -> None:
    text = MIXED.format(origin="recordings", path=shown, algorithm="dqn", task="CartPole-v1")
    found = run_of(tmp_path, text, exports=False, runtime="ray")
    assert found["weights"]["policy"][0] > 1


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.timeout(280)
@pytest.mark.usefixtures("ray_cluster")
def test_a_replay_on_ray_begins_with_a_data_set_again_when_its_process_was_killed(
    shown: Path,
) -> None:
    from bray_buffer.remote import RemoteBuffer

    begin = ReplayBeginning(str(shown), SPACES, GAMMA)
    config = ReplayConfig(unit="transition", batch_size=4, capacity=500, min_size=4)
    buffer = RemoteBuffer("begun", LAYOUT, config, begin=begin)
    try:
        assert buffer.stats()["queued"] == 0, "what was saved would come first"
        buffer.begin()
        steps = buffer.stats()["queued"]
        assert steps > 20
        buffer.begin()
        assert buffer.stats()["queued"] == steps
        os.kill(buffer._pool.pids()[0], signal.SIGKILL)
        until = time.monotonic() + 60
        while True:
            batch = buffer.pop(60)
            if buffer.stats()["queued"] == steps:
                break
            assert time.monotonic() < until
        assert len(batch.block) == 4
    finally:
        buffer.close()
