"""A trained policy in a program: trained, asked, evaluated, watched, exported and loaded."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from PIL import Image

import bray
from bray.algorithms.ppo import PPO
from bray.sources import demonstrations
from bray.templates.loading import load
from bray.trained.agent import TrainedAgent
from bray.trained.first_episodes import record_first_episodes
from bray.trained.programs import overrides_of
from bray.trained.simulator_values import to_action, to_observation
from bray_actor import spaces as gymnasium_spaces
from bray_core.action_vector import ActionVector
from bray_core.cli import main
from bray_core.errors import ConfigError, NotFoundError, SpecError
from bray_core.spaces import LeafSpace, Spaces

SMALL: dict[str, Any] = {"steps_per_replay": 128, "hidden": [4], "num_envs": 2}
EVERY_KIND = spaces.Dict(
    {
        "one": spaces.Discrete(3, start=-1),
        "several": spaces.MultiDiscrete([2, 4], start=[1, 5]),
        "flags": spaces.MultiBinary(3),
        "reals": spaces.Box(-2.0, 3.0, (2, 2), np.float32),
        "real": spaces.Box(-2.0, 3.0, (), np.float32),
        "pair": spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1, (1,), np.float64)]),
    }
)


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trial of CartPole that was trained for a moment, by a line of Python."""
    folder = tmp_path_factory.mktemp("project") / "cartpole"
    agent = bray.train(
        "CartPole-v1", algorithm="ppo", frames=256, episodes=2, trial=folder, seed=3, **SMALL
    )
    with agent:
        assert agent.path == folder
    return folder


@pytest.fixture
def agent(trial: Path) -> Iterator[TrainedAgent]:
    with bray.load(trial) as loaded:
        yield loaded


def test_it_trains_and_plays_within_a_running_loop_as_in_a_notebook(tmp_path: Path) -> None:
    async def cell() -> float:
        with bray.train(
            "CartPole-v1", "ppo", frames=256, episodes=2, trial=tmp_path / "trial", **SMALL
        ) as agent:
            agent.act(np.zeros(4, np.float32))
            return agent.evaluate(episodes=1).mean

    assert asyncio.run(cell()) > 0


def test_a_trial_is_a_name_or_a_folder_as_the_command_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for trial, folder in (
        ("mine", "trials/mine"), ("./here", "here"), ("runs/a", "runs/a"), (Path("b"), "b"),
    ):  # fmt: skip
        with bray.train("CartPole-v1", "ppo", frames=256, episodes=1, trial=trial, **SMALL) as one:
            assert one.path == Path(folder)
        if isinstance(trial, str):
            told = ["--frames=256", "--episodes=1", "--goal=1", f"--trial={trial}-2"]
            settings = [f"{name}={value}" for name, value in SMALL.items()]
            main(["train", "ppo", "CartPole-v1", *settings, *told])
            assert Path(f"{folder}-2", "config.yaml").is_file()
    with bray.load("mine") as one:
        assert one.path == Path("trials/mine")
    with pytest.raises(NotFoundError, match="none: no such folder"):
        bray.load("none")
    assert main(["train", "cartpole", "--trial=runs/a", "--project=other"]) == 2
    with pytest.raises(ConfigError, match="trial: expected the name of the trial below the proj"):
        bray.train("CartPole-v1", "ppo", trial="")


def test_a_set_is_taken_as_the_environment_gives_it() -> None:
    space = LeafSpace("set", "float32", (3, 3))  # up to 3 members of 2 numbers
    padded = [[1, 2, 1], [3, 4, 1], [0, 0, 0]]
    for value in (((1, 2), [3, 4]), np.array([[1, 2], [3, 4]], np.int8), np.array(padded)):
        assert to_observation(space, value).tolist() == padded
    assert not to_observation(space, ()).any()
    assert to_observation(LeafSpace("set", "float32", (2, 2)), (7,)).tolist() == [[7, 1], [0, 0]]
    for value in (5, None, [[1, 2], [3]], [(1, 2, 3)], ({"x": 1},)):
        with pytest.raises(SpecError, match=r"gymnasium\.spaces\.flatten of its space makes it"):
            to_observation(space, value)
    with pytest.raises(SpecError, match="up to 3 members of 2 numbers, got 4 members"):
        to_observation(space, np.ones((4, 2)))


def test_numbers_of_numpy_and_code_are_what_they_are_in_python() -> None:
    found = overrides_of(
        {"hidden": np.array([4, 8]), "learning_rate": np.float32(0.5), "gamma": torch.tensor(0.5)},
        frames=1e6, seed=np.int64(3), goal=np.float32(0.5),
    )  # fmt: skip
    assert found == [
        "hidden=[4, 8]", "learning_rate=0.5", "gamma=0.5",
        "goal.max_frames=1000000", "seed=3", "goal.episode_return=0.5",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match=r"kwargs: expected a number, .* got object; where"):
        overrides_of({"kwargs": {"x": object()}})


class Bare(gymnasium.Env[Any, Any]):
    """An environment whose author has forgotten its spaces."""


class Shaped(gymnasium.Env[Any, Any]):
    """An environment whose author has written a shape for a space."""

    observation_space = (3,)  # type: ignore[assignment]
    action_space = gymnasium.spaces.Discrete(2)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"algorithm": 5}, "algorithm: expected a name, such as 'ppo', or a class .* got 5"),
        ({"algorithm": "PPO"}, "got 'PPO', did you mean 'ppo'"),
        ({"algorithm": "ddpg"}, "did you mean 'td3'"),
        ({"algorithm": None}, "'CartPole-v1' is a task: name an algorithm, too, such as ppo"),
        ({"callbacks": bray.Callback()}, "callbacks: expected a list of bray.Callback, got <bray"),
        ({"callbacks": [bray.Callback]}, "expected a bray.Callback or a function, got <class"),
        ({"learning_rate": lambda at: at}, r"got function; .* is a schedule: \{\"start\": 1e-3"),
        ({"policy_kwargs": {}}, "did you mean 'model.hidden'"),
        ({"frames": 64.5}, "expected a whole number, got 64.5"),
        ({"environment": Bare}, "Bare: expected an observation_space, got none: set it in the cl"),
        ({"environment": Shaped}, r"Shaped: observation_space: .* gymnasium.spaces, got \(3,\)"),
    ],
)
def test_an_argument_of_another_type_is_named_and_leaves_no_run_open(
    tmp_path: Path, arguments: dict[str, Any], told: str
) -> None:
    given = {"environment": "CartPole-v1", "algorithm": "ppo", "frames": 64, "episodes": 1}
    trial = {"trial": tmp_path / "trial", **SMALL, "steps_per_replay": 64}
    with pytest.raises(ConfigError, match=told):
        bray.train(**{**given, **trial, **arguments})
    assert not (tmp_path / "trial").exists()
    bray.init(tmp_path, "next").close()


def test_an_algorithm_may_be_its_class(tmp_path: Path) -> None:
    trial = tmp_path / "trial"
    with bray.train("CartPole-v1", PPO, frames=256, episodes=1, trial=trial, **SMALL) as agent:
        assert agent.path == trial


def test_what_no_agent_could_play_is_refused_before_it_is_trained(tmp_path: Path) -> None:
    folder = tmp_path / "trial"
    with pytest.raises(ConfigError, match="algorithm: qmix trains a policy for rows alone"):
        bray.train("two-step", "qmix", trial=folder)
    with pytest.raises(ConfigError, match="unknown 'CartPol-v1', did you mean 'CartPole-v1'"):
        bray.train("CartPol-v1", "ppo", frames=256, trial=folder)
    assert not folder.exists()


def test_it_plays_the_environments_own_loop(agent: TrainedAgent) -> None:
    environment = gymnasium.make("CartPole-v1")
    observation, _ = environment.reset(seed=1)
    for _ in range(5):
        action = agent.act(observation)
        assert environment.action_space.contains(action)
        observation, *_ = environment.step(action)


def test_a_program_and_the_command_make_the_same_trial(trial: Path, tmp_path: Path) -> None:
    settings = [f"{name}={value}" for name, value in SMALL.items()]
    command = ["train", "ppo", "CartPole-v1", *settings, "--frames", "256", "--seed", "3"]
    assert main([*command, "--episodes", "2", "--project", str(tmp_path)]) == 1
    with bray.load(trial) as ours, bray.load(tmp_path / "ppo-CartPole-v1-3") as theirs:
        observation = np.full(4, 0.1, np.float32)
        assert ours._model(observation)["logits"] == pytest.approx(
            theirs._model(observation)["logits"], abs=1e-6
        )
        assert ours.evaluate(2).returns == theirs.evaluate(2).returns


def test_the_first_launch_leaves_two_episodes_for_the_viewer(trial: Path) -> None:
    files = demonstrations.files(trial / "episodes")
    assert len(files) == 2, "later launches have recorded no more"
    with bray.load(trial) as agent:
        assert demonstrations.mean_return(trial / "episodes") > 0
        again = agent.record(trial.parent / "more", 2)
    assert again.mean == demonstrations.mean_return(trial.parent / "more")


@pytest.mark.parametrize(
    ("task", "setting"),
    [("CartPole-v1", "render.first_episodes=0"), ("my_game:Game", "render.first_episodes=2")],
)
def test_none_are_recorded_where_they_may_take_long_or_nobody_wants_them(
    trial: Path, tmp_path: Path, task: str, setting: str
) -> None:
    shutil.copytree(trial, tmp_path / "trial", ignore=shutil.ignore_patterns("*.episode"))
    changed = (trial / "config.yaml").read_text().replace("CartPole-v1", task)
    (tmp_path / "trial" / "config.yaml").write_text(changed)
    template = load(str(trial), [setting])
    assert record_first_episodes(template, tmp_path / "trial") == 0
    with pytest.raises(ConfigError, match="first_episodes: expected 0 to 100, got -1"):
        load(str(trial), ["render.first_episodes=-1"])


FULL = """
sources: {pole: {kind: environments, environment: CartPole-v1, num_envs: 2}}
trainers: {one: {algorithm: ppo, steps_per_replay: 128, minibatch_size: 128, epochs: 1}}
models: {one: {hidden: [4]}}
goal: {max_frames: 128, evaluation_episodes: 2}
"""


def test_one_policy_of_a_full_template_leaves_episodes_too(tmp_path: Path) -> None:
    file = tmp_path / "full.yaml"
    file.write_text(FULL)
    main(["train", str(file), "--project", str(tmp_path)])
    assert len(demonstrations.files(tmp_path / "full" / "episodes")) == 2
    (tmp_path / "empty").mkdir()
    assert record_first_episodes(load(str(file)), tmp_path / "empty") == 0


def test_what_cannot_be_recorded_is_logged(
    trial: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(trial, tmp_path / "trial", ignore=shutil.ignore_patterns("episodes"))
    (tmp_path / "trial" / "episodes").touch()
    assert record_first_episodes(load(str(trial)), tmp_path / "trial") == 0
    assert "no first episodes were recorded" in caplog.text


@pytest.mark.long
@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_a_video_of_each_evaluation_changes_nothing_of_the_training(
    algorithm: str, tmp_path: Path
) -> None:
    weights = []
    for videos in (0, 1):
        settings = {"ppo": SMALL, "dqn": {"hidden": [4], "warmup_frames": 64}}[algorithm]
        folder = tmp_path / f"with-{videos}"
        bray.train(
            "CartPole-v1",
            algorithm,
            goal=1e6,
            frames=1024,
            episodes=2,
            trial=folder,
            render={"videos": videos, "first_episodes": 0},
            **{"goal.evaluate_at": 1.0},
            **settings,
        ).close()
        with bray.load(folder) as agent:
            seen = np.linspace(-0.1, 0.1, 4, dtype=np.float32)
            weights.append({n: v.tolist() for n, v in agent._model(seen).items()})
    assert weights[0] == weights[1]
    assert not (tmp_path / "with-0" / "videos").exists()
    files = sorted((tmp_path / "with-1" / "videos").iterdir())
    assert len(files) > 1, "the first one was followed by training"
    for file in files:
        assert 0 < int(file.stem) <= 1024
        assert file.suffix == (".mp4" if shutil.which("ffmpeg") else ".gif")
        assert file.stat().st_size > 1000


def test_videos_of_what_draws_nothing_are_refused_before_the_run(tmp_path: Path) -> None:
    for task in ("simulator", "my_silent_game:Silent"):
        settings: dict[str, Any] = {"render": {"videos": 1}}
        if task == "simulator":
            settings["source"] = {
                "command": "play --port {port}",
                "spaces": {"observation": {"shape": [3]}, "action": {"discrete": 2}},
            }
        words = "render.videos: expected 0 where no Gymnasium" if task == "simulator" else "draws"
        with pytest.raises(ConfigError, match=words):
            bray.train(task, "ppo", frames=64, trial=tmp_path / "trial", **settings)
        assert not (tmp_path / "trial").exists()


def test_a_trial_that_has_used_its_budget_goes_on(trial: Path) -> None:
    with bray.train(
        "CartPole-v1", algorithm="ppo", frames=512, episodes=2, trial=trial, seed=3, **SMALL
    ) as agent:
        assert agent.act(np.zeros(4, np.float32)) in (0, 1)


def test_an_export_is_an_agent_too(agent: TrainedAgent, tmp_path: Path) -> None:
    with bray.load(agent.export(tmp_path / "export")) as other:
        observation = np.array([0.1, -0.2, 0.03, 0.4], np.float32)
        assert other.act(observation) == agent.act(observation)
        assert other.evaluate(2, environment="CartPole-v1").mean > 0
        with pytest.raises(ConfigError, match=r"environment: .*export is no trial"):
            other.evaluate(2)


def test_it_is_found_where_the_working_directory_changes(
    trial: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trial.parent)
    with bray.load(trial.name) as agent:
        monkeypatch.chdir(tmp_path)
        assert agent.evaluate(episodes=1).returns == agent.record("shown").returns
        agent.watch(save="play.gif")
        agent.export("copy")
    assert {path.name for path in tmp_path.iterdir()} == {"shown", "play.gif", "copy"}


def test_its_evaluation_says_what_it_found(agent: TrainedAgent) -> None:
    found = agent.evaluate(3, seed=7)
    assert len(found.returns) == 3
    assert found.mean == pytest.approx(np.mean(found.returns))
    assert str(found).endswith("over 3 episodes")
    assert agent.evaluate(3, seed=7) == found


def test_its_actions_may_be_drawn(trial: Path) -> None:
    with bray.load(trial, deterministic=False) as drawn:
        actions = {int(drawn.act(np.zeros(4, np.float32))) for _ in range(60)}
    assert actions == {0, 1}


@pytest.mark.parametrize("kind", ["gif", "webp"])
def test_an_episode_becomes_a_video(agent: TrainedAgent, tmp_path: Path, kind: str) -> None:
    file = tmp_path / "videos" / f"play.{kind}"
    played = agent.watch(save=file)
    with Image.open(file) as image:
        assert 1 < image.n_frames <= played.mean + 1, "frames that are equal are one"
        assert image.size == (600, 400)


def test_the_command_saves_into_the_trial_where_there_is_no_screen(
    trial: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert main(["watch", str(trial)]) == 0
    assert "over 1 episode\n" in capsys.readouterr().out
    assert (trial / "watch.gif").stat().st_size > 1000
    assert "DISPLAY" not in os.environ


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("play.avi", r"save: expected a file that ends in \.webp, \.gif, \.mp4, got"),
        ("play", r"save: expected a file that ends in"),
    ],
)
def test_another_kind_of_video_is_refused(
    agent: TrainedAgent, tmp_path: Path, file: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        agent.watch(save=tmp_path / file)


def test_an_environment_that_draws_nothing_says_so(agent: TrainedAgent) -> None:
    with pytest.raises(ConfigError, match=r"draws nothing .*: it takes no `render_mode`"):
        agent.watch(save="never.gif", environment="bray.sources.tasks:TwoHeads-v0")


def test_mistakes_are_told(agent: TrainedAgent, trial: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"observation: expected numbers of 4 \(float32\), got"):
        agent.act(np.zeros(3, np.float32))
    with pytest.raises(ConfigError, match="episodes: expected 1 or more, got 0"):
        agent.evaluate(0)
    with pytest.raises(NotFoundError, match="no such folder"):
        bray.load(tmp_path / "nothing")
    with pytest.raises(NotFoundError, match=r"policy: .* has no export of 'runner'"):
        bray.load(trial, policy="runner")
    with pytest.raises(ConfigError, match="unknown setting"):
        bray.train("CartPole-v1", algorithm="ppo", learning_speed=1)
    with pytest.raises(ConfigError, match=r"wrappers: expected a number, a word.*got set"):
        bray.train("CartPole-v1", algorithm="ppo", wrappers={1})
    assert not (tmp_path / "trials").exists()


def test_observations_are_sent_as_a_gamecore_sends_them() -> None:
    described = gymnasium_spaces.of_gymnasium("here", EVERY_KIND, spaces.Discrete(2))
    EVERY_KIND.seed(1)
    for _ in range(20):
        value = EVERY_KIND.sample()
        ours = to_observation(described.observation, value)
        theirs = gymnasium_spaces.to_arrays(EVERY_KIND, value)
        np.testing.assert_equal(ours, theirs)


def test_actions_are_those_that_the_environment_takes() -> None:
    described = gymnasium_spaces.of_gymnasium("here", spaces.Discrete(2), EVERY_KIND)
    described = Spaces.parse("again", described.described())
    vector = ActionVector(described.action)
    EVERY_KIND.seed(2)
    for _ in range(20):
        value = EVERY_KIND.sample()
        flat = vector.flatten(gymnasium_spaces.to_arrays(EVERY_KIND, value))
        action = to_action(described.action, vector.assemble(flat))
        assert EVERY_KIND.contains(action)
        np.testing.assert_allclose(
            spaces.flatten(EVERY_KIND, action), spaces.flatten(EVERY_KIND, value), rtol=1e-6
        )


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": 1}, r"observation: expected the keys \['x', 'y'\], got \['a'\]"),
        ({"x": [1.0, 2.0], "y": 0}, "observation/x: expected numbers of 3"),
        ({"x": [1.0, 2.0, 3.0], "y": "north"}, "observation/y: expected one of 4 values, got"),
        ([1, 2], r"observation: expected the keys \['x', 'y'\], got list"),
    ],
)
def test_an_observation_that_does_not_fit_names_the_place(value: Any, words: str) -> None:
    space = Spaces.parse("here", {
        "observation": {"x": {"shape": [3]}, "y": {"discrete": 4}}, "action": {"discrete": 2},
    }).observation  # fmt: skip
    with pytest.raises(SpecError, match=words):
        to_observation(space, value)


def test_what_a_space_does_not_name_is_left_out() -> None:
    space = {"x": LeafSpace("vector", "float32", (2,))}
    found = to_observation(space, {"x": [1, 2], "more": "words"})
    assert list(found) == ["x"]
    assert found["x"].tolist() == [1, 2]
