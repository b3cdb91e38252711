"""`bray train` of an algorithm and a task, and that every algorithm can be called by it."""

from __future__ import annotations

import functools
import json
import pickle
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from bray import registry
from bray.algorithms.alphazero import AlphaZero
from bray.algorithms.dqn import DQN
from bray.composition.resumed_algorithms import check_algorithms
from bray.goal import Goal, Outcome, conclude
from bray.templates.loading import compose, load
from bray.training.algorithm import load_algorithm
from bray_actor.environments.spec import EnvironmentSpec
from bray_core.cli import main
from bray_core.errors import ConfigError


def outcome(goal: Goal) -> Outcome:
    return Outcome(
        reached=goal.is_reached(50.0),
        evaluation_return=50.0,
        episode_returns=[50.0],
        frames=7,
        seconds=1.0,
        frames_per_s=7.0,
        version=2,
    )


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Calls of DQN and AlphaZero, which do nothing."""
    made: list[Any] = []

    def train(self: Any, run: Any, *, goal: Goal, seed: int) -> Outcome:
        made.append((run.experiment.path, self.parts, goal, seed))
        return conclude(run.experiment.path, outcome(goal))

    for algorithm in (DQN, AlphaZero):
        monkeypatch.setattr(algorithm, "train", train)
    return made


def bray(tmp_path: Path, *arguments: str) -> int:
    return main(["train", *arguments, "--project", str(tmp_path)])


@pytest.mark.parametrize("name", registry.names())
def test_every_algorithm_declares_itself_and_is_plain_data(name: str) -> None:
    algorithm = load_algorithm(name)
    made = algorithm.of(algorithm.example)
    assert algorithm.title
    assert algorithm.__doc__
    assert algorithm.budget > 0
    assert algorithm.pacing in ("lockstep", "lagging", "ratio", "population", "offline")
    assert algorithm.serves in ("actor", "function", "text")
    assert "trainer" in algorithm.configs
    assert _read_elsewhere()[name] == str(made.parts)


@functools.cache
def _read_elsewhere() -> dict[str, str]:
    """Return the parts of every algorithm's example, unpickled by one other interpreter."""
    made = {name: load_algorithm(name) for name in registry.names()}
    pickled = {name: pickle.dumps(kind.of(kind.example)) for name, kind in made.items()}
    script = (
        "import pickle, sys; found = pickle.load(sys.stdin.buffer);"
        "sys.stdout.buffer.write("
        "pickle.dumps({name: str(pickle.loads(made).parts) for name, made in found.items()}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], input=pickle.dumps(pickled), capture_output=True, check=True
    )
    parts: dict[str, str] = pickle.loads(done.stdout)
    return parts


def test_settings_and_goal_are_those_of_the_command_line(
    tmp_path: Path, calls: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["dqn", "CartPole-v1", "gamma=0.9", "hidden=[8, 4]", "--goal", "50", "--json"]
    arguments += ["--frames", "99", "--episodes", "5", "--seed", "3"]
    assert bray(tmp_path, *arguments) == 0
    ((path, parts, goal, seed),) = calls
    assert path == tmp_path / "dqn-CartPole-v1-3"
    assert seed == 3
    assert parts == DQN.of("CartPole-v1", gamma=0.9, hidden=(8, 4)).parts
    assert goal == Goal(episode_return=50, evaluate_at=50, max_frames=99, evaluation_episodes=5)
    assert capsys.readouterr().out == json.dumps(asdict(outcome(goal))) + "\n"
    written = yaml.safe_load((path / "config.yaml").read_text())
    assert (written["algorithm"], written["seed"]) == ("dqn", 3)
    assert (written["trainer"]["gamma"], written["goal"]["max_frames"]) == (0.9, 99)
    again = load(str(path))  # `bray train` of the trial goes on with it
    assert (again.parts, again.goal) == (parts, goal)


def test_json_is_all_that_is_printed(tmp_path: Path) -> None:
    """What a run says, and what an environment prints, goes to standard error."""
    (tmp_path / "loud.py").write_text(
        "import gymnasium\n"
        "class Loud(gymnasium.Env):\n"
        "    observation_space = gymnasium.spaces.Discrete(2)\n"
        "    action_space = gymnasium.spaces.Discrete(2)\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        print('a new game')\n"
        "        return 0, {}\n"
        "    def step(self, action):\n"
        "        return 1, 1.0, True, False, {}\n"
    )
    words = [sys.executable, "-m", "bray_core.cli", "train", "ppo", "loud.py:Loud", "--json"]
    words += ["--goal", "1", "--episodes", "2", "--trial", "one", "steps_per_replay=64"]
    for _ in range(2):  # the second time the trial has reached its goal
        done = subprocess.run(
            [*words, "--frames", "256"], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert json.loads(done.stdout)["evaluation_return"] == 1


def test_a_goal_that_was_not_reached_is_1(tmp_path: Path, calls: list[Any]) -> None:
    arguments = ["dqn", "CartPole-v1", "--goal", "475", "--evaluate-at", "150", "--trial", "mine"]
    assert bray(tmp_path, *arguments) == 1
    assert calls[0][0] == tmp_path / "mine"
    assert calls[0][2].evaluate_at == 150


def test_without_a_goal_the_registered_threshold_or_the_budget_decides(
    tmp_path: Path, calls: list[Any]
) -> None:
    assert bray(tmp_path, "dqn", "CartPole-v1") == 1
    assert bray(tmp_path, "dqn", "Acrobot-v1") == 0
    assert bray(tmp_path, "dqn", "bray.sources.tasks:TwoHeads-v0", "--frames", "9") == 0
    goals = [goal for _, _, goal, _ in calls]
    assert [goal.episode_return for goal in goals] == [475.0, -100.0, None]
    assert [goal.budget for goal in goals] == [DQN.budget, DQN.budget, 9]


def test_a_trial_that_has_reached_its_goal_says_so_and_ends(
    tmp_path: Path, calls: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert bray(tmp_path, "dqn", "CartPole-v1", "--goal", "50") == 0
    assert len(calls) == 1
    said = capsys.readouterr().out
    assert "has reached its goal 50: mean return 50 after 7 frames" in said
    assert "Train on: --go-on, or raise --goal. Start" in said
    assert bray(tmp_path, "dqn", "CartPole-v1", "--goal", "50", "--go-on") == 0
    assert bray(tmp_path, "dqn", "CartPole-v1", "--goal", "60") == 1, "there is more to reach"
    assert len(calls) == 3


def test_a_task_may_have_defaults_of_its_own(tmp_path: Path, calls: list[Any]) -> None:
    for task in ("tic-tac-toe", "connect-four"):
        assert bray(tmp_path, "alphazero", task, "num_games=8", "--goal", "1") == 0
    small, large = (parts for _, parts, _, _ in calls)
    assert small.source.num_games == large.source.num_games == 8
    assert (small.model.hidden, large.model.hidden) == ((128, 64), (256, 128))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["gama=0.9"], "gama: unknown setting of DQN, did you mean 'trainer.gamma'?"),
        (["lr=1e-3"], "lr: unknown setting of DQN, did you mean 'trainer.learning_rate'?"),
        (["clip=0.1"], "clip: unknown setting of DQN, which only appo, mappo, ppo, "),
        (["max_frame=9"], "max_frame: unknown setting of DQN, did you mean 'goal.max_frames'?"),
        (["trainer.hidden=8"], "trainer.hidden: unknown key, did you mean 'model.hidden'?"),
        (["trainer.lr=1e-3"], "trainer.lr: unknown key, did you mean 'learning_rate'?"),
        (["gamma"], "command line: expected key=value, got 'gamma'"),
        (["gamma=fast"], "gamma: expected a number"),
        (["gamma=2"], "gamma: expected 0 to 1, got 2"),
        (["hidden=["], "command line: model.hidden: expected a list, got '['"),
        (["--frames", "0"], "goal.max_frames: expected 1 or more, got 0"),
        (["--episodes", "0"], "evaluation_episodes: expected 1 or more, got 0"),
        (["--goal", "nan"], "goal.episode_return: expected a number, got 'nan'"),
        (["--trial", "../other"], "trial"),
        (["--seed", "-1"], "seed: expected 0 to 9"),
        (["--address", "127.0.0.1:1"], "add --runtime ray"),
    ],
)
def test_bad_input_is_named_and_is_2(
    tmp_path: Path,
    calls: list[Any],
    capsys: pytest.CaptureFixture[str],
    settings: list[str],
    message: str,
) -> None:
    assert bray(tmp_path, "dqn", "CartPole-v1", *settings) == 2
    assert message in capsys.readouterr().err
    assert not calls


@pytest.mark.parametrize(
    ("algorithm", "task", "message"),
    [
        ("dqm", "CartPole-v1", "algorithm: expected one of a2c, .*got 'dqm', did you mean 'dqn'"),
        ("dqn", "CartPol-v1", "CartPol"),
        ("dqn", "Pendulum-v1", "Pendulum-v1: expected actions that are one choice"),
        ("td3", "FrozenLake-v1", "FrozenLake-v1: expected actions that are reals"),
        ("alphazero", "tic-tac-to", "task: expected one of .*did you mean 'tic-tac-toe'"),
        (
            "selfplay",
            "tic-tac-toe",
            "algorithm: 'selfplay' was removed: ppo with `source.kind: mat",
        ),
        (
            "league",
            "rock-paper-scissors",
            "algorithm: 'league' was removed: .*docs/guides/league.md",
        ),
        ("qmix", "two-stop", "environment: unknown 'two-stop'.*did you mean 'two-step'"),
        ("cartpole", "Acrobot-v1", "the template cartpole has its task already.*--env Acrobot-v1"),
        ("my.yaml", "gamma", "the template my.yaml has its task already: expected key=value"),
    ],
)
def test_what_there_is_not_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], algorithm: str, task: str, message: str
) -> None:
    assert bray(tmp_path, algorithm, task, "--goal", "1", "--trial", "mine") == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "mine").exists(), "what was refused leaves no trial"


def test_a_trial_with_results_stays_when_it_is_refused(
    tmp_path: Path, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Any, run: Any, **_: Any) -> Outcome:
        (run.experiment.path / "checkpoints" / "replay.pt").touch()
        raise ConfigError("the goal moved")

    monkeypatch.setattr(DQN, "train", refuse)
    assert bray(tmp_path, "dqn", "CartPole-v1", "--trial", "mine") == 2
    assert (tmp_path / "mine" / "checkpoints" / "replay.pt").exists()
    (tmp_path / "mine" / "checkpoints" / "replay.pt").unlink()
    monkeypatch.setattr(DQN, "train", lambda self, run, **_: refuse_at_once())
    assert bray(tmp_path, "dqn", "CartPole-v1", "--trial", "mine") == 2
    assert (tmp_path / "mine").exists(), "it was there before"


def test_a_trial_does_not_go_on_with_another_algorithm(
    tmp_path: Path, calls: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Many have networks of one kind: a trial of `ppo` had gone on with `impala`."""
    named = "CartPole-v1", "--trial", "mine", "--goal", "60"
    bray(tmp_path, "dqn", *named)
    capsys.readouterr()
    (tmp_path / "mine" / "checkpoints" / "replay-1.pt").touch()
    assert bray(tmp_path, "ppo", *named) == 2
    words = rf"algorithm: expected 'dqn', by which {tmp_path}/mine was trained, got 'ppo': choose"
    assert re.search(words, capsys.readouterr().err)
    bray(tmp_path, "dqn", *named, "learning_rate=1e-5")
    assert len(calls) == 2
    finished = [*named[:-1], "40"]
    assert bray(tmp_path, "dqn", *finished) == 0
    assert bray(tmp_path, "ppo", *finished) == 2, "and does not say that it has reached its goal"
    assert re.search(words, capsys.readouterr().err)


def test_learners_keep_their_algorithms(tmp_path: Path) -> None:
    def trained_by(**algorithms: str) -> dict[str, Any]:
        return {"trainers": {name: {"algorithm": one} for name, one in algorithms.items()}}

    check_algorithms(tmp_path, trained_by(wolf="ppo"))  # a new trial
    (tmp_path / "checkpoints" / "wolf").mkdir(parents=True)
    (tmp_path / "checkpoints" / "wolf" / "replay-1.pt").touch()
    check_algorithms(tmp_path, trained_by(wolf="ppo"))  # one of a script, without settings
    settings = tmp_path / "config.yaml"
    settings.write_text(yaml.safe_dump(trained_by(wolf="ppo", sheep="mine.py:Mine")))
    check_algorithms(tmp_path, trained_by(wolf="ppo", sheep="moved.py:Mine", dog="dqn"))
    with pytest.raises(ConfigError, match=r"trainers\.wolf\.algorithm: expected 'ppo', by which"):
        check_algorithms(tmp_path, trained_by(wolf="a2c", sheep="mine.py:Mine"))


def refuse_at_once() -> Outcome:
    raise ConfigError("no")


def test_a_near_name_is_told_without_all_the_others(
    tmp_path: Path, calls: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert bray(tmp_path, "dqn", "CartPole-v1", "lr=1") == 2
    assert "known:" not in capsys.readouterr().err
    assert bray(tmp_path, "dqn", "CartPole-v1", "xyzzy=1") == 2
    assert "known: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "kind", "settings"),
    [
        (["connect_four_v3"], "matches", {}),
        (["open_spiel:kuhn_poker(players=3)", "num_envs=2"], "matches", {"num_envs": 2}),
        (["bray:tic-tac-toe"], "matches", {}),
        (["simple_spread_v3", "kwargs.N=2"], "agents", {"kwargs": {"N": 2}}),
        (["simple_spread_v3", "source.kind=matches"], "matches", {}),
    ],
)
def test_games_of_several_agents_need_no_template(
    words: list[str], kind: str, settings: dict[str, Any]
) -> None:
    task, *overrides = words
    template = compose("ppo", task, ["seed=3", "learning_rate=1e-3", *overrides])
    assert template.seed == 3
    assert template.composition is not None
    (source,) = template.composition.sources.values()
    assert (source.kind, source.config.environment) == (kind, task)
    assert {name: getattr(source.config, name) for name in settings} == settings
    (learner,) = template.composition.learners.values()
    assert learner.parts.trainer.learning_rate == 1e-3


PAIR = """
import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv


class Pair(ParallelEnv):
    metadata = {"name": "pair"}
    possible_agents = ["a", "b"]

    def observation_space(self, agent):
        return spaces.Box(-1, 1, (2,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def of_all(self, value):
        return dict.fromkeys(self.possible_agents, value)

    def reset(self, seed=None, options=None):
        self.agents, self.steps = list(self.possible_agents), 0
        return self.of_all(np.zeros(2, np.float32)), self.of_all({})

    def step(self, actions):
        self.steps += 1
        ends, same = self.steps == 3, float(actions["a"] == actions["b"])
        self.agents = [] if ends else self.agents
        seen = self.of_all(np.zeros(2, np.float32))
        return seen, self.of_all(same), self.of_all(ends), self.of_all(False), self.of_all({})


class Duel(AECEnv):
    pass


def make():
    return Pair()
"""


def test_a_class_of_pettingzoo_trains_by_one_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "pair_that_plays.py"
    file.write_text(PAIR)
    words = ["train", "ppo", f"{file}:Pair", "steps_per_replay=64", "minibatch_size=64"]
    words += ["hidden=[4]", "--frames", "128", "--episodes", "2", "--project", str(tmp_path)]
    assert main([*words, "--trial", "pair"]) == 0
    assert "has ended: mean return" in capsys.readouterr().out
    assert main(["watch", str(tmp_path / "pair")]) == 2
    assert "error: environment: it draws nothing: expected `render()`" in capsys.readouterr().err


def test_classes_of_pettingzoo_are_known_by_their_base(tmp_path: Path) -> None:
    file = tmp_path / "pair_of_two.py"
    file.write_text(PAIR)
    for name, kind in (("Pair", "agents"), ("Duel", "matches")):
        composition = compose("ppo", f"{file}:{name}").composition
        assert composition is not None
        assert [source.kind for source in composition.sources.values()] == [kind]
    assert compose("ppo", f"{file}:make").composition is None, "what it returns is not known yet"
    assert compose("ppo", f"{file}:make", ["source.kind=agents"]).composition is not None
    with pytest.raises(ConfigError, match=r"expected a gymnasium\.Env, got Pair: .*source\.kind="):
        EnvironmentSpec.of(f"{file}:make").make()


@pytest.mark.parametrize(
    ("end", "kind"),
    [
        ("parallel_env = Pair\nenv = Duel\n", "agents"),
        ("env = Duel\n", "matches"),
        ("env = Pair()\n", None),
        ("import no_such_physics\n", "agents"),
    ],
)
def test_a_module_like_those_of_pettingzoo_is_a_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, kind: str | None
) -> None:
    stem = f"pairs_{len(end)}"  # a module of one name is imported once
    file = tmp_path / "pair_games" / f"{stem}.py"
    file.parent.mkdir()
    file.write_text(PAIR + end)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for task in (f"pair_games.{stem}", str(file)):
        composition = compose("ppo", task).composition
        sources = composition.sources.values() if composition is not None else ()
        assert [source.kind for source in sources] == ([kind] if kind is not None else [])
    assert compose("ppo", "pair_games.others").composition is None
    del sys.modules["pair_games"]


def test_a_game_of_others_trains_by_one_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "ppo", "open_spiel:kuhn_poker", "steps_per_replay=64", "minibatch_size=64"]
    words += ["hidden=[4]", "--frames", "128", "--episodes", "2", "--project", str(tmp_path)]
    assert main([*words, "--trial", "kuhn"]) == 0
    assert "open_spiel:kuhn_poker has ended" in capsys.readouterr().out
    assert main(["train", "ppo", "simple_tag_v3", "--project", str(tmp_path)]) == 2
    assert "give each kind a model of its own" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"did you mean 'matches'"):
        compose("ppo", "simple_spread_v3", ["source.kind=mtches"])
