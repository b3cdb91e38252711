"""`python -m bray.recipes`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bray.learning import Outcome
from bray.recipes import __main__ as command
from bray.recipes import dqn
from bray.template import GoalPart


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Calls of the recipe, which does nothing."""
    made: list[Any] = []

    def train(run: Any, task: str, config: Any, *, goal: GoalPart, seed: int) -> Outcome:
        made.append((run.experiment.path, task, config, goal, seed))
        return Outcome(
            reached=goal.episode_return < 100,
            evaluation_return=50.0,
            frames=7,
            seconds=1.0,
            version=2,
        )

    monkeypatch.setattr(dqn, "train", train)
    return made


def main(tmp_path: Path, *arguments: str) -> int:
    return command.main([*arguments, "--project", str(tmp_path)])


def test_settings_and_goal_are_those_of_the_command_line(
    tmp_path: Path, calls: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["dqn", "CartPole-v1", "gamma=0.9", "hidden=[8, 4]", "learning_rate=1e-4"]
    arguments += ["--goal", "50", "--max-frames", "99", "--episodes", "5", "--seed", "3"]
    assert main(tmp_path, *arguments) == 0
    ((path, task, config, goal, seed),) = calls
    assert path == tmp_path / "dqn-CartPole-v1"
    assert (task, seed) == ("CartPole-v1", 3)
    assert config == dqn.Config(gamma=0.9, hidden=(8, 4), learning_rate=1e-4)
    assert goal == GoalPart(episode_return=50, evaluate_at=50, max_frames=99, evaluation_episodes=5)
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["reached"], last["evaluation_return"], last["frames"]) == (True, 50.0, 7)


def test_a_goal_that_was_not_reached_is_1(tmp_path: Path, calls: list[Any]) -> None:
    arguments = ["dqn", "ns/Task-v0", "--goal", "475", "--evaluate-at", "150", "--trial", "mine"]
    assert main(tmp_path, *arguments) == 1
    assert calls[0][0] == tmp_path / "mine"
    assert calls[0][3].evaluate_at == 150


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["gama=0.9"], "gama"),
        (["gamma"], "command line: expected key=value, got 'gamma'"),
        (["gamma=fast"], "gamma: expected a number"),
        (["gamma=2"], "gamma: expected 0 to 1, got 2"),
        (["hidden=["], "command line: hidden: expected a value, got '['"),
        (["--max-frames", "0"], "max_frames: expected more than 0, got 0"),
        (["--episodes", "0"], "evaluation_episodes: expected more than 0, got 0"),
        (["--trial", "../other"], "trial"),
    ],
)
def test_bad_input_is_named_and_is_2(
    tmp_path: Path,
    calls: list[Any],
    capsys: pytest.CaptureFixture[str],
    settings: list[str],
    message: str,
) -> None:
    assert main(tmp_path, "dqn", "CartPole-v1", "--goal", "1", *settings) == 2
    assert message in capsys.readouterr().err
    assert not calls


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("CartPol-v1", "CartPol"),
        ("Pendulum-v1", "Pendulum-v1: expected Discrete actions, got Box"),
        ("FrozenLake-v1", "FrozenLake-v1: expected an observation that is one vector"),
    ],
)
def test_a_task_that_does_not_fit_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], task: str, message: str
) -> None:
    assert main(tmp_path, "dqn", task, "--goal", "1") == 2
    assert message in capsys.readouterr().err


def test_an_unknown_recipe_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(["dqm", "CartPole-v1", "--goal", "1"])
    assert "invalid choice: 'dqm'" in capsys.readouterr().err
