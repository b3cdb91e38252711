"""Environments of yours in whole runs: training, evaluation and gamecores play the same one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bray.sources.environments import make_environments, read_spaces
from bray.training.evaluation import evaluate
from bray_actor.environments.spec import EnvironmentSpec
from bray_core.cli import main

GAME = """
import gymnasium, numpy as np
from gymnasium import spaces

class PushEnv(gymnasium.Env):
    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, length=10):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(2, np.float32), float(action), self.steps >= self.length, False, {}

class Hundredfold(gymnasium.RewardWrapper):
    def reward(self, reward):
        return 100 * reward + 1
"""


SHORT = [
    *("--json", "source.kwargs.length=4", "trainer.steps_per_replay=256"),
    *("trainer.learning_rate=3e-3", "--goal", "380", "--frames", "20000", "--episodes", "8"),
]


def test_a_class_that_is_not_registered_is_trained_by_the_command(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(GAME)
    command = [str(Path(sys.executable).parent / "bray"), "train", "ppo", "one:PushEnv", *SHORT]
    command += ["source.wrappers=[one:Hundredfold]"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    assert_it_learnt(done.stdout)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("stepped", ["stepped.py:PushEnv", "source.stepping=processes", "source.num_envs=2"]),
        ("called", ["called:PushEnv", "source.num_processes=1"]),
    ],
    ids=["processes", "gamecores"],
)
def test_a_class_that_is_not_registered_is_trained(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    settings: list[str],
) -> None:
    """In this process; what steps the environments, and what evaluates, has its own."""
    (tmp_path / f"{name}.py").write_text(GAME)
    monkeypatch.chdir(tmp_path)
    wrapped = f"source.wrappers=[{name}:Hundredfold]"
    assert main(["train", "ppo", *settings, *SHORT, wrapped]) == 0
    assert_it_learnt(capsys.readouterr().out)
    sys.modules.pop(name, None)


def assert_it_learnt(output: str) -> None:
    outcome = json.loads(output.strip().splitlines()[-1])
    assert outcome["reached"]
    assert 380 <= outcome["evaluation_return"] <= 404  # of four steps, wrapped


def test_spaces_and_vectors_go_through_the_description() -> None:
    spec = EnvironmentSpec(
        environment="FrozenLake-v1",
        kwargs={"is_slippery": False},
        wrappers=("gymnasium.wrappers:FlattenObservation",),
    )
    assert read_spaces(spec).observation.shape == (16,)
    environments = make_environments(spec, 3)
    observation, _ = environments.reset(seed=1)
    assert observation.shape == (3, 16)
    for action in (1, 1, 2, 1, 2, 2):  # the way to the goal, where it is not slippery
        _, reward, terminated, *_ = environments.step(np.full(3, action))
    assert reward.tolist() == [1.0] * 3
    assert terminated.all()
    environments.close()


def test_wrappers_act_in_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bray.policies.config import NetworkConfig
    from bray.policies.networks import example_inputs, make_policy
    from bray_model import Model

    (tmp_path / "wrapped_in_evaluation.py").write_text(GAME)
    monkeypatch.chdir(tmp_path)
    name = "wrapped_in_evaluation"
    spec = EnvironmentSpec(
        environment=f"{name}:PushEnv", kwargs={"length": 3}, wrappers=(f"{name}:Hundredfold",)
    )
    spaces = read_spaces(spec)
    policy = make_policy(spaces, NetworkConfig(hidden=(4,)), seed=1)
    with Model(policy, example_inputs(spaces, 0)) as model:
        returns = evaluate(model, spec, 2, seed=1)
    assert set(returns) <= {3.0, 303.0}
    sys.modules.pop(name, None)
