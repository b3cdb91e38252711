"""Environments, wrappers and networks that a program gives as they are, instead of by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import bray
from bray.trained.environment_names import environment_name
from bray_core.errors import ConfigError

SMALL: dict[str, Any] = {
    "frames": 128,
    "episodes": 2,
    "steps_per_replay": 64,
    "hidden": [4],
    "num_envs": 2,
}
PROGRAM = """
import gymnasium
import numpy as np
from gymnasium import spaces

import bray


class Push(gymnasium.Env):
    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, length=5):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(2, np.float32), 1.0, self.steps >= self.length, False, {}


class Doubled(gymnasium.RewardWrapper):
    def reward(self, reward):
        return 2 * reward


SMALL = dict(frames=128, episodes=2, steps_per_replay=64, hidden=[4], num_envs=2)
"""
"""A program's own environment; what it does follows, without a guard."""


class Push(gymnasium.Env[np.ndarray[Any, Any], int]):
    """Five steps of nothing."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.zeros(2, np.float32), 1.0, self.steps >= 5, False, {}


def run_program(folder: Path, lines: str) -> subprocess.CompletedProcess[str]:
    """Run a program of a user in a folder of its own."""
    (folder / "push.py").write_text(PROGRAM + lines)
    return subprocess.run(
        [sys.executable, "push.py"], cwd=folder, capture_output=True, text=True, timeout=300
    )


def test_a_program_trains_on_code_of_its_own(tmp_path: Path) -> None:
    lines = """
gymnasium.register("Mine-v0", Push, kwargs={"length": 4})  # known to this process alone
calls = [
    lambda: bray.train(Push, "ppo", **SMALL),
    lambda: bray.train(Push, "ppo", seed=2, kwargs={"length": 7}, **SMALL),
    lambda: bray.train(Push, "ppo", seed=3, wrappers=[Doubled], **SMALL),
    lambda: bray.train("push.py:Push", "ppo", seed=4, **SMALL),
    lambda: bray.train("Mine-v0", "ppo", **SMALL),
]
for call in calls:
    agent = call()
    print("->", agent.path, agent.evaluate(2).mean)
"""
    done = run_program(tmp_path, lines)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("->")] == [
        "-> trials/ppo-Push-1 5.0",
        "-> trials/ppo-Push-2 7.0",
        "-> trials/ppo-Push-3 10.0",
        "-> trials/ppo-Push-4 5.0",
        "-> trials/ppo-Mine-v0-1 4.0",
    ]
    assert "evaluation at 128 frames: mean return 7.00" in done.stdout
    (tmp_path / "push.py").write_text(PROGRAM)
    agent = bray.load(tmp_path / "trials/ppo-Push-3")  # it finds the class in its file
    with agent:
        assert agent.evaluate(1).mean == 10


def test_processes_of_an_unguarded_program_are_told_about_the_guard(tmp_path: Path) -> None:
    done = run_program(tmp_path, 'bray.train(Push, "ppo", stepping="processes", **SMALL)\n')
    assert done.returncode == 1
    assert "below `if __name__ == '__main__':`" in done.stderr


def test_an_environment_beside_the_program_is_found_by_every_process(tmp_path: Path) -> None:
    (tmp_path / "games").mkdir()
    (tmp_path / "games/beside_it.py").write_text(PROGRAM)
    (tmp_path / "games/train.py").write_text(
        "import bray\nfrom beside_it import SMALL, Push\n"
        "for trial, env in {'given': Push, 'named': 'beside_it:Push'}.items():\n"
        "    print(bray.train(env, 'ppo', trial=trial, **SMALL).evaluate(2))\n"
    )
    done = subprocess.run(
        [sys.executable, "games/train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("evaluation at 128 frames: mean return 5.00") == 2
    with bray.load(tmp_path / "trials/given") as agent:  # this process looks elsewhere
        assert agent.evaluate(1).mean == 5


def test_a_function_without_a_name_plays_in_this_process(tmp_path: Path) -> None:
    for made in (lambda: Push(), lambda: Push()):  # the second takes the first one's place
        with bray.train(made, "ppo", trial=tmp_path / str(id(made)), **SMALL) as agent:
            assert agent.evaluate(2).mean == 5


@pytest.mark.parametrize(
    ("environment", "needs_processes", "words"),
    [
        (Push(), False, "got Push: a run makes several, so give what makes one"),
        (7, False, "expected a name, or a class or function"),
        (lambda: Push(), True, "expected something that other processes can import"),
    ],
)
def test_what_makes_no_environment_is_refused(
    environment: Any, needs_processes: bool, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        environment_name(environment, needs_processes=needs_processes)


def test_gymnasiums_own_ids_are_not_hidden() -> None:
    def CartPole() -> Push:
        return Push()

    CartPole.__qualname__ = "somewhere.<locals>.CartPole"
    with pytest.raises(ConfigError, match="would hide Gymnasium's own CartPole-v0"):
        environment_name(CartPole, needs_processes=False)


def test_a_class_without_an_algorithm_is_told_to_name_one() -> None:
    with pytest.raises(ConfigError, match="algorithm: expected one for"):
        bray.train(Push)


def test_settings_that_cannot_be_written_are_refused() -> None:
    with pytest.raises(ConfigError, match="wrappers: expected a number, a word"):
        bray.train("CartPole-v1", "ppo", wrappers=[lambda env: env])
