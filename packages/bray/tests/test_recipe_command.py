"""`bray recipe`, and that every recipe can be called by it."""

from __future__ import annotations

import inspect
import json
import logging
import re
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from bray import registry as recipe_command
from bray.algorithms import alphazero, dqn
from bray.goal import Goal, Outcome
from bray.templates import template
from bray_core.cli import main
from bray_core.config import with_overrides


def outcome(goal: Goal) -> Outcome:
    return Outcome(
        reached=goal.episode_return < 100,
        evaluation_return=50.0,
        frames=7,
        seconds=1.0,
        version=2,
    )


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Calls of DQN and AlphaZero, which do nothing."""
    made: list[Any] = []

    def train(run: Any, task: str, config: Any, *, goal: Goal, seed: int) -> Outcome:
        made.append((run.experiment.path, task, config, goal, seed))
        logging.getLogger("bray.algorithms.dqn").info("half-way")
        return outcome(goal)

    for recipe in (dqn, alphazero):
        monkeypatch.setattr(recipe, "train", train)
    return made


def bray(tmp_path: Path, *arguments: str) -> int:
    return main(["recipe", *arguments, "--project", str(tmp_path)])


@pytest.mark.parametrize("name", recipe_command.names())
def test_all_recipes_are_alike(name: str) -> None:
    recipe: Any = recipe_command.load(name)
    found = inspect.signature(recipe.train)
    assert [p.name for p in found.parameters.values()] == ["run", "task", "config", "goal", "seed"]
    assert [p.default for p in found.parameters.values()][2:] == [None, inspect.Parameter.empty, 1]
    assert found.return_annotation == "Outcome"
    assert issubclass(recipe.Outcome, Outcome)
    assert is_dataclass(recipe.Config)
    assert with_overrides(recipe.Config(), []) == recipe.Config()


def test_settings_and_goal_are_those_of_the_command_line(
    tmp_path: Path, calls: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["dqn", "CartPole-v1", "gamma=0.9", "hidden=[8, 4]", "--goal", "50"]
    arguments += ["--max-frames", "99", "--episodes", "5", "--seed", "3", "learning_rate=1e-4"]
    assert bray(tmp_path, *arguments) == 0
    ((path, task, config, goal, seed),) = calls
    assert path == tmp_path / "dqn-CartPole-v1-3"
    assert (task, seed) == ("CartPole-v1", 3)
    assert config == dqn.DQN.of("CartPole-v1", gamma=0.9, hidden=(8, 4), learning_rate=1e-4).parts
    assert goal == Goal(episode_return=50, evaluate_at=50, max_frames=99, evaluation_episodes=5)
    said = capsys.readouterr()
    assert said.out == json.dumps(asdict(outcome(goal))) + "\n"
    assert said.err == "half-way\n"
    written = yaml.safe_load((path / "config.yaml").read_text())
    assert (written["recipe"], written["seed"]) == ("dqn", 3)
    assert (written["trainer"]["gamma"], written["goal"]["max_frames"]) == (0.9, 99)
    again = template.load(str(path))  # `bray train` of the trial goes on with it
    assert (again.environment, again.settings, again.goal) == (task, config, goal)


def test_a_goal_that_was_not_reached_is_1(tmp_path: Path, calls: list[Any]) -> None:
    arguments = ["dqn", "ns/Task-v0", "--goal", "475", "--evaluate-at", "150", "--trial", "mine"]
    assert bray(tmp_path, *arguments) == 1
    assert calls[0][0] == tmp_path / "mine"
    assert calls[0][3].evaluate_at == 150


def test_a_task_may_have_defaults_of_its_own(tmp_path: Path, calls: list[Any]) -> None:
    for task in ("tic-tac-toe", "connect-four"):
        assert bray(tmp_path, "alphazero", task, "num_games=8", "--goal", "1") == 0
    small, large = (config for _, _, config, _, _ in calls)
    assert small.num_games == large.num_games == 8
    assert small.hidden == alphazero.DEFAULTS["tic-tac-toe"].hidden
    assert large.hidden == alphazero.AlphaZero.of("tic-tac-toe").config.hidden


def test_a_matrix_may_be_a_task(tmp_path: Path) -> None:
    settings = ["rounds=2", "games_per_round=8", "rating_games=2"]
    bray(tmp_path, "league", "[[0, 1], [-1, 0]]", *settings, "--goal", "-0.05", "--seed", "2")
    assert (tmp_path / "league--0-1--1-0--2" / "result.json").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["gama=0.9"], "gama: unknown key, did you mean 'gamma'?"),
        (["gamma"], "command line: expected key=value, got 'gamma'"),
        (["gamma=fast"], "gamma: expected a number"),
        (["gamma=2"], "gamma: expected 0 to 1, got 2"),
        (["hidden=["], "command line: hidden: expected a list, got '['"),
        (["--max-frames", "0"], "max_frames: expected more than 0, got 0"),
        (["--episodes", "0"], "evaluation_episodes: expected more than 0, got 0"),
        (["--goal", "nan"], "episode_return: expected a number, got nan"),
        (["--trial", "../other"], "trial"),
        (["--seed", "-1"], "--seed: expected 0 or more, got -1"),
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
    assert bray(tmp_path, "--goal", "1", "dqn", "CartPole-v1", *settings) == 2
    assert message in capsys.readouterr().err
    assert not calls


@pytest.mark.parametrize(
    ("recipe", "task", "message"),
    [
        ("dqm", "CartPole-v1", "recipe: expected one of a2c, .*got 'dqm', did you mean 'dqn'"),
        ("dqn", "CartPol-v1", "CartPol"),
        ("dqn", "Pendulum-v1", "Pendulum-v1: expected Discrete actions, got Box"),
        ("dqn", "FrozenLake-v1", "FrozenLake-v1: expected an observation that is one vector"),
        ("alphazero", "tic-tac-to", "task: expected one of .*did you mean 'tic-tac-toe'"),
        ("selfplay", "chess", "task: expected tic-tac-toe, got 'chess'"),
        ("league", "rock-paper", "task: expected one of .*did you mean 'rock-paper-scissors'"),
        ("league", "[[1, 2], [3]]", r"payoff: expected finite \[M, N\]"),
        ("qmix", "two-stop", "task: expected one of .*did you mean 'two-step'"),
    ],
)
def test_what_there_is_not_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], recipe: str, task: str, message: str
) -> None:
    assert bray(tmp_path, recipe, task, "--goal", "1", "--trial", "mine") == 2
    assert re.search(message, capsys.readouterr().err)


def test_settings_of_a_namespace_are_found_by_short_names_too() -> None:
    assert recipe_command.tuned_task("appo", "ALE/Breakout-v5") == "ALE/"
    assert recipe_command.tuned_task("appo", "Breakout") == "ALE/"
    assert recipe_command.tuned_task("appo", "cartpole") == ""
    assert recipe_command.tuned_task("appo", "Nonsense") == ""
    assert recipe_command.tuned_task("appo", 3) == ""
    assert recipe_command.defaults("appo", "Breakout").hidden == (512,)
