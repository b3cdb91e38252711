"""Where a policy is evaluated: in this process or over the wire, with the same returns."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec

from bray.goal import Goal
from bray.policies.config import NetworkConfig
from bray.policies.networks import example_inputs, make_policy
from bray.sources.environments import read_spaces
from bray.training import evaluation
from bray.training.evaluation import evaluate_latest, plays_here
from bray_actor.environments.spec import EnvironmentSpec
from bray_core.errors import DeadlineError
from bray_model import Model


@pytest.mark.parametrize(
    ("environment", "is_here"),
    [
        ("CartPole-v1", True),
        ("CliffWalking-v1", True),
        (EnvironmentSpec(environment="CartPole-v1", max_episode_steps=20), True),
        (EnvironmentSpec(environment="CartPole-v1", stepping="processes"), False),
        (
            EnvironmentSpec(
                environment="CartPole-v1", wrappers=("gymnasium.wrappers:FlattenObservation",)
            ),
            True,
        ),
        (EnvironmentSpec(environment="CartPole-v1", wrappers=("own.py:Wrapper",)), False),
        ("gymnasium.envs.classic_control:CartPoleEnv", False),  # nobody has registered that
        ("ALE/Pong-v5", False),
        ("OfThisProcess-v0", True),
        ("__main__:OfANotebook", True),
        (EnvironmentSpec(environment="CartPole-v1", wrappers=("__main__:Wrapper",)), True),
    ],
)
def test_gymnasiums_own_environments_are_played_in_this_process(
    environment: str | EnvironmentSpec, is_here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = EnvSpec("OfThisProcess-v0", entry_point="own:Environment")
    monkeypatch.setitem(gymnasium.registry, spec.id, spec)
    assert plays_here(environment) is is_here


@pytest.mark.parametrize("hidden_memory", [0, 4])
def test_over_the_wire_the_returns_are_the_same(
    hidden_memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spaces = read_spaces("CartPole-v1")
    policy = make_policy(spaces, NetworkConfig(hidden=(8,), memory_size=hidden_memory), seed=2)
    state_size = int(getattr(policy, "state_size", 0))
    assert bool(state_size) is bool(hidden_memory)
    goal = Goal(evaluation_episodes=23)
    called: list[Any] = []
    wire = evaluation.evaluate
    monkeypatch.setattr(
        evaluation, "evaluate", lambda *args, **more: called.append(1) or wire(*args, **more)
    )
    with Model(policy, example_inputs(spaces, state_size)) as model:
        here = evaluate_latest(model, policy, spaces, "CartPole-v1", goal, seed=1)
        assert not called
        goal = replace(goal, evaluate_over_the_wire=True)
        assert evaluate_latest(model, policy, spaces, "CartPole-v1", goal, seed=1) == here
        assert called
    assert len(here) == 23
    assert len(set(here)) > 1


class Asked:
    """A server that was asked a step more, or none, whenever it is looked at."""

    def __init__(self, more: int) -> None:
        self._asked, self._more = 0, more

    def stats(self) -> dict[str, float]:
        self._asked += self._more
        return {"requests": self._asked}


@pytest.mark.parametrize("more", [1, 0])
def test_an_evaluation_may_last_as_long_as_it_steps(
    more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "_LOOK_S", 0.05)
    monkeypatch.setattr(evaluation, "_SILENT_S", 0.3)
    words = [sys.executable, "-c", "import time; time.sleep(1.5); print('done')"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        server: Any = Asked(more)
        if more:
            assert evaluation._wait(process, server) == ("done\n", "")
        else:
            with pytest.raises(DeadlineError, match="took no step for 0 s"):
                evaluation._wait(process, server)
            process.kill()
